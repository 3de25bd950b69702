//! The settings that hold for all volumes: their names, Longhorn's defaults, and how a value is read.
//!
//! A `Setting` object holds text. [`Settings::read`] turns the objects of a cluster into typed answers
//! once, at the edge; a value that makes no sense is reported and its default holds, so that one
//! mistyped setting cannot stop every volume.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::setting::Setting;

mod table;
pub use table::*;

/// One setting that this system knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingDefinition {
    /// The name of the `Setting` object.
    pub name: &'static str,
    /// What holds when nobody has set it.
    pub default: &'static str,
    /// What its value may be.
    pub kind: SettingKind,
    /// What it is for, in a sentence.
    pub description: &'static str,
}

/// What the value of a setting may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// `true` or `false`.
    Flag,
    /// A whole number within bounds.
    WholeNumber {
        /// The least that is allowed.
        min: i64,
        /// The most that is allowed.
        max: i64,
    },
    /// One of these.
    Choice(&'static [&'static str]),
    /// Any text.
    Text,
}

/// A value that a setting cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingValueError {
    /// Nothing here goes by that name.
    #[error("setting {name:?} is not known")]
    UnknownName {
        /// The name of the object.
        name: String,
    },
    /// Neither `true` nor `false`.
    #[error("setting {name} must be \"true\" or \"false\", not {value:?}")]
    NotAFlag {
        /// The setting.
        name: &'static str,
        /// What it was set to.
        value: String,
    },
    /// Not a number, or one out of bounds.
    #[error("setting {name} must be a whole number from {min} to {max}, not {value:?}")]
    NotInRange {
        /// The setting.
        name: &'static str,
        /// The least that is allowed.
        min: i64,
        /// The most that is allowed.
        max: i64,
        /// What it was set to.
        value: String,
    },
    /// Not among the choices.
    #[error("setting {name} must be one of {}, not {value:?}", choices.join(", "))]
    NotAChoice {
        /// The setting.
        name: &'static str,
        /// What is allowed.
        choices: &'static [&'static str],
        /// What it was set to.
        value: String,
    },
}

/// The answers in force in one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    values: BTreeMap<&'static str, String>,
}

/// How much of a refused value an error repeats; the value may come from anyone.
const SHOWN_CHARACTERS_MAX: usize = 128;

impl SettingDefinition {
    /// The setting of that name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|definition| definition.name == name)
    }

    /// Checks a value and gives it in its plain form.
    ///
    /// Longhorn lets some settings differ by data engine, as in `{"v1":"3","v2":"2"}`. Our engine counts
    /// as `v1`, so its entry is the value; without that entry the default is.
    pub fn parse(&self, value: &str) -> Result<String, SettingValueError> {
        let value = match self.kind {
            SettingKind::Text => value.to_owned(),
            SettingKind::Flag | SettingKind::WholeNumber { .. } | SettingKind::Choice(_) => {
                self.v1_entry(value.trim())
            }
        };
        self.check(&value)?;
        Ok(value)
    }

    /// The `v1` entry of a value that is a JSON object; otherwise the value.
    fn v1_entry(&self, value: &str) -> String {
        match serde_json::from_str::<BTreeMap<String, String>>(value) {
            Ok(by_data_engine) => by_data_engine
                .get("v1")
                .map_or(self.default, String::as_str)
                .to_owned(),
            Err(_) => value.to_owned(),
        }
    }

    fn check(&self, value: &str) -> Result<(), SettingValueError> {
        let name = self.name;
        let shown = || value.chars().take(SHOWN_CHARACTERS_MAX).collect();
        match self.kind {
            SettingKind::Flag if value != "true" && value != "false" => {
                Err(SettingValueError::NotAFlag {
                    name,
                    value: shown(),
                })
            }
            SettingKind::WholeNumber { min, max }
                if !value
                    .parse()
                    .is_ok_and(|number: i64| (min..=max).contains(&number)) =>
            {
                Err(SettingValueError::NotInRange {
                    name,
                    min,
                    max,
                    value: shown(),
                })
            }
            SettingKind::Choice(choices) if !choices.contains(&value) => {
                Err(SettingValueError::NotAChoice {
                    name,
                    choices,
                    value: shown(),
                })
            }
            SettingKind::Flag
            | SettingKind::WholeNumber { .. }
            | SettingKind::Choice(_)
            | SettingKind::Text => Ok(()),
        }
    }
}

impl Settings {
    /// Reads the `Setting` objects of a cluster, and says which of them make no sense.
    pub fn read<'a>(
        objects: impl IntoIterator<Item = &'a Setting>,
    ) -> (Self, Vec<SettingValueError>) {
        let mut settings = Self::default();
        let mut errors = Vec::new();
        for object in objects {
            if let Err(error) = settings.set(&object.name_any(), object.value()) {
                errors.push(error);
            }
        }
        (settings, errors)
    }

    /// Sets one value, as the object of that name would.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingValueError> {
        let definition =
            SettingDefinition::find(name).ok_or_else(|| SettingValueError::UnknownName {
                name: name.chars().take(SHOWN_CHARACTERS_MAX).collect(),
            })?;
        let value = definition.parse(value)?;
        self.values.insert(definition.name, value);
        Ok(())
    }

    /// The value in force, as text.
    pub fn text(&self, definition: &SettingDefinition) -> &str {
        self.values
            .get(definition.name)
            .map_or(definition.default, String::as_str)
    }

    /// Whether a flag is on.
    ///
    /// # Panics
    /// When the setting is not a flag, which is a mistake of the caller.
    pub fn is_on(&self, definition: &SettingDefinition) -> bool {
        assert_eq!(
            definition.kind,
            SettingKind::Flag,
            "setting {} is not a flag",
            definition.name
        );
        self.text(definition) == "true"
    }

    /// The number in force.
    ///
    /// # Panics
    /// When the setting is not a whole number, which is a mistake of the caller.
    pub fn whole_number(&self, definition: &SettingDefinition) -> i64 {
        let SettingKind::WholeNumber { .. } = definition.kind else {
            panic!("setting {} is not a whole number", definition.name);
        };
        self.text(definition)
            .parse()
            .expect("values and defaults were checked to be numbers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_a_value_that_its_setting_can_have() {
        for definition in ALL {
            assert_eq!(
                definition.parse(definition.default).as_deref(),
                Ok(definition.default)
            );
        }
    }

    #[test]
    fn names_are_unique_and_sorted() {
        let names: Vec<_> = ALL.iter().map(|definition| definition.name).collect();
        assert!(names.is_sorted_by(|left, right| left < right), "{names:?}");
    }

    #[track_caller]
    fn check(definition: &SettingDefinition, value: &str, expected: Result<&str, &str>) {
        let parsed = definition.parse(value).map_err(|error| error.to_string());
        assert_eq!(parsed.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn values_are_checked_and_errors_say_what_is_allowed() {
        check(&AUTO_SALVAGE, "false", Ok("false"));
        check(&AUTO_SALVAGE, " true ", Ok("true"));
        check(
            &AUTO_SALVAGE,
            "yes",
            Err("setting auto-salvage must be \"true\" or \"false\", not \"yes\""),
        );
        check(&DEFAULT_REPLICA_COUNT, "2", Ok("2"));
        check(&DEFAULT_REPLICA_COUNT, r#"{"v1":"2","v2":"3"}"#, Ok("2"));
        check(&DEFAULT_REPLICA_COUNT, r#"{"v2":"2"}"#, Ok("3"));
        check(
            &DEFAULT_REPLICA_COUNT,
            r#"{"v1":"0"}"#,
            Err("setting default-replica-count must be a whole number from 1 to 20, not \"0\""),
        );
        check(
            &STORAGE_MINIMAL_AVAILABLE_PERCENTAGE,
            "101",
            Err(
                "setting storage-minimal-available-percentage must be a whole number from 0 to 100, not \"101\"",
            ),
        );
        check(
            &DEFAULT_DATA_LOCALITY,
            "near",
            Err(
                "setting default-data-locality must be one of disabled, best-effort, strict-local, not \"near\"",
            ),
        );
        check(
            &DEFAULT_DATA_PATH,
            r#"{"v1":"kept as it is"}"#,
            Ok(r#"{"v1":"kept as it is"}"#),
        );
    }

    #[test]
    fn a_value_that_makes_no_sense_leaves_the_default_in_force() {
        let object = |name: &str, value: &str| {
            Setting::new(
                name,
                crate::SettingValue {
                    value: value.to_owned(),
                    ..Default::default()
                },
            )
        };
        let objects = [
            object("auto-salvage", "maybe"),
            object("replica-soft-anti-affinity", "true"),
            object("default-replica-count", "2"),
            object("upgrade-checker", "true"),
        ];
        let (settings, errors) = Settings::read(&objects);
        assert!(settings.is_on(&AUTO_SALVAGE));
        assert!(settings.is_on(&REPLICA_SOFT_ANTI_AFFINITY));
        assert!(!settings.is_on(&RWX_VOLUME_FAST_FAILOVER));
        assert_eq!(settings.whole_number(&DEFAULT_REPLICA_COUNT), 2);
        assert_eq!(
            settings.whole_number(&REPLICA_REPLENISHMENT_WAIT_INTERVAL),
            600
        );
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            errors,
            [
                "setting auto-salvage must be \"true\" or \"false\", not \"maybe\"",
                "setting \"upgrade-checker\" is not known",
            ]
        );
    }
}
