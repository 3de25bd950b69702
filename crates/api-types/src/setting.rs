//! `settings.longhorn.io`: one value that holds for all volumes. The known ones are in [`crate::settings`].

use kube::CustomResource;

use crate::wire::object;

object! {
    /// The value of a setting. Longhorn puts it at the top of the object, beside `metadata`: on the wire
    /// there is no `spec`.
    #[derive(CustomResource)]
    #[kube(
        group = "longhorn.io", version = "v1beta2", kind = "Setting", namespaced, no_spec,
        shortname = "lhs", status = "SettingStatus", derive = "PartialEq", derive = "Default",
        label("longhorn-manager", ""),
        doc = "One value that holds for all volumes. Its name says what it is.",
        printcolumn(name = "Value", type_ = "string", json_path = ".value", description = "The value of the setting"),
        printcolumn(name = "Applied", type_ = "boolean", json_path = ".status.applied", description = "Whether the setting is in force"),
        printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
    )]
    #[schemars(extend("required" = ["value"]))]
    pub struct SettingValue {
        /// The value, as text whatever its type; or a JSON object with a value for each data engine.
        pub value: String,
    }

    /// What became of a setting.
    pub struct SettingStatus {
        /// Whether the value is in force.
        pub applied: bool,
    }
}

impl Setting {
    /// The value, as text.
    pub fn value(&self) -> &str {
        &self.spec.value
    }
}
