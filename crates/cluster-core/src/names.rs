//! Names that other programs compute too. Each formula is Kubernetes' or the external-attacher's, to
//! the byte: a different one would be a different object.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::identity::{AttachmentName, DriverName, NodeName, VolumeHandle};

/// A node that a person has declared to be powered off.
pub const OUT_OF_SERVICE_TAINT: &str = "node.kubernetes.io/out-of-service";

/// Nodes without this annotation attach by themselves, and are none of our business.
pub const MANAGED_ANNOTATION: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// Where the attacher keeps the CSI node ID, for a detach after the CSINode is gone.
pub const NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";

/// Where we keep the volume handle, for a detach after the PersistentVolume is gone.
pub const HANDLE_ANNOTATION: &str = "lariat.io/volume-handle";

/// A PersistentVolume that CSI migration has handed to this driver.
pub const MIGRATED_TO_ANNOTATION: &str = "pv.kubernetes.io/migrated-to";

/// `csi-` and the SHA-256 of handle, driver and node, written one after the other.
pub fn attachment_name(
    handle: &VolumeHandle,
    driver: &DriverName,
    node: &NodeName,
) -> AttachmentName {
    let mut hasher = Sha256::new();
    hasher.update(handle.as_str());
    hasher.update(driver.as_str());
    hasher.update(node.as_str());
    let mut name = String::from("csi-");
    for byte in hasher.finalize() {
        use std::fmt::Write as _;
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    AttachmentName::new(name)
}

/// The attacher's finalizer on VolumeAttachments and PersistentVolumes: `external-attacher/` and the
/// driver's name with everything but letters, digits and `-` replaced, ending in `X` where it would end
/// in `-`, which Kubernetes does not allow.
pub fn finalizer_name(driver: &DriverName) -> String {
    let is_kept = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let sanitized: String = driver
        .as_str()
        .chars()
        .map(|letter| if is_kept(letter) { letter } else { '-' })
        .collect();
    let end = if sanitized.ends_with('-') { "X" } else { "" };
    format!("external-attacher/{sanitized}{end}")
}

/// For people only: written, never read back.
pub fn attached_node_annotation(driver: &DriverName) -> String {
    format!("{driver}/attached-node")
}

/// For people only: written, never read back.
pub fn attached_at_annotation(driver: &DriverName) -> String {
    format!("{driver}/attached-at")
}

/// What nodes call a volume in `volumesAttached` and `volumesInUse`:
/// `kubernetes.io/csi/<driver>^<handle>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UniqueVolumeName {
    pub driver: DriverName,
    pub handle: VolumeHandle,
}

const UNIQUE_PREFIX: &str = "kubernetes.io/csi/";

impl UniqueVolumeName {
    /// None for names of other plugins; nodes list those too.
    pub fn parse(text: &str) -> Option<Self> {
        let (driver, handle) = text.strip_prefix(UNIQUE_PREFIX)?.split_once('^')?;
        Some(Self {
            driver: driver.into(),
            handle: handle.into(),
        })
    }

    pub fn attachment_on(&self, node: &NodeName) -> AttachmentName {
        attachment_name(&self.handle, &self.driver, node)
    }
}

impl fmt::Display for UniqueVolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{UNIQUE_PREFIX}{}^{}", self.driver, self.handle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_names_are_hashes_of_plain_concatenation() {
        // Computed with: printf '%s' 'vol-1driver.longhorn.ionode-1' | sha256sum
        let check = |handle: &str, driver: &str, node: &str, expected: &str| {
            assert_eq!(
                attachment_name(&handle.into(), &driver.into(), &node.into()).as_str(),
                expected
            );
        };
        check(
            "vol-1",
            "driver.longhorn.io",
            "node-1",
            "csi-b8a7c00fca2ea6447775fe17872fc5701108f103325b6ca8fa88207ece74429a",
        );
        check(
            "",
            "",
            "",
            "csi-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        );
        // No separator: this is Kubernetes' formula, and so are its collisions.
        let name = |handle: &str, driver: &str| {
            attachment_name(&handle.into(), &driver.into(), &"n".into())
        };
        assert_eq!(name("ab", "c"), name("a", "bc"));
    }

    #[test]
    fn finalizers_are_sanitized() {
        let check =
            |driver: &str, expected: &str| assert_eq!(finalizer_name(&driver.into()), expected);
        check("driver.longhorn.io", "external-attacher/driver-longhorn-io");
        check("ebs.csi.aws.com", "external-attacher/ebs-csi-aws-com");
        check("My_Driver-1", "external-attacher/My-Driver-1");
        check("driver.", "external-attacher/driver-X");
        check("driver-", "external-attacher/driver-X");
        check("träger.io", "external-attacher/tr-ger-io");
    }

    #[test]
    fn unique_names_read_back() {
        let check = |text: &str, expected: Option<(&str, &str)>| {
            let parsed = UniqueVolumeName::parse(text);
            assert_eq!(
                parsed
                    .as_ref()
                    .map(|name| (name.driver.as_str(), name.handle.as_str())),
                expected
            );
            if let Some(name) = parsed {
                assert_eq!(name.to_string(), text);
            }
        };
        check(
            "kubernetes.io/csi/driver.longhorn.io^pvc-1",
            Some(("driver.longhorn.io", "pvc-1")),
        );
        check("kubernetes.io/csi/d^a^b", Some(("d", "a^b")));
        check("kubernetes.io/aws-ebs/vol-1", None);
        check("kubernetes.io/csi/nothing", None);
    }
}
