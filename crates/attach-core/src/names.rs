//! Identity: a node, a volume and a ticket are never confused with one another, nor with plain text.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Names are shared text: one decision copies them into plans, statuses and reasons many times over,
/// and a copy is a counter, not an allocation.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as the API spells it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// A node of the cluster, by the name that Kubernetes and the longhorn.io Node share.
    NodeName
}
name! {
    /// A volume, which is also the name of its VolumeAttachment.
    VolumeName
}
name! {
    /// The key of a ticket in `spec.attachmentTickets`. The empty id is legal: it is what the upstream
    /// API files a manual attachment under by default.
    TicketId
}

impl NodeName {
    /// The API spells "no node" as an empty string; we do not.
    #[must_use]
    pub fn from_wire(text: &str) -> Option<Self> {
        (!text.is_empty()).then(|| Self::from(text))
    }

    /// The inverse of [`NodeName::from_wire`].
    #[must_use]
    pub fn to_wire(node: Option<&Self>) -> String {
        node.map_or_else(String::new, |node| node.as_str().to_owned())
    }
}

/// How often a ticket's request has changed. A status speaks for one generation only.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Generation(pub i64);

impl Generation {
    /// The generation of a request that differs from this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
