//! Which volume a person means.

use std::fmt;

use serde::Serialize;

use crate::index::{Index, name, namespace};

/// What `why` is asked about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum Subject {
    Volume { name: String },
    Claim { namespace: String, name: String },
    Pod { namespace: String, name: String },
}

/// No such thing, or several.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("there is no volume, claim or pod {text:?}{}", suggestion(.near))]
    Unknown { text: String, near: Vec<String> },
    #[error("{text:?} may be one of {}: say which", .meant.join(", "))]
    Ambiguous { text: String, meant: Vec<String> },
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        return "; `lariat volume list` shows the volumes, and claims and pods may be given as NAMESPACE/NAME".to_owned();
    }
    format!(". Did you mean {}?", near.join(", "))
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Volume { name } => write!(f, "volume {name}"),
            Self::Claim { namespace, name } => write!(f, "claim {namespace}/{name}"),
            Self::Pod { namespace, name } => write!(f, "pod {namespace}/{name}"),
        }
    }
}

/// How alike two names must be to be worth a question.
const SIMILARITY_MIN: f64 = 0.75;
const SUGGESTIONS_MAX: usize = 3;

impl Subject {
    /// `VOLUME`, `CLAIM`, `POD`, `NAMESPACE/NAME`, or any of them after `volume/`, `pvc/` or `pod/`.
    pub fn resolve(index: &Index<'_>, text: &str) -> Result<Self, SubjectError> {
        let (kind, rest) = match text.split_once('/') {
            Some(("volume" | "volumes" | "lhv" | "pv", rest)) => (Some("volume"), rest),
            Some(("claim" | "pvc" | "persistentvolumeclaim", rest)) => (Some("pvc"), rest),
            Some(("pod" | "pods", rest)) => (Some("pod"), rest),
            _ => (None, text),
        };
        let (wanted_namespace, wanted) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        let mut meant: Vec<Self> = Self::all(index)
            .filter(|one| kind.is_none_or(|kind| one.kind() == kind))
            .filter(|one| one.name() == wanted)
            .filter(|one| wanted_namespace.is_none_or(|wanted| one.namespace() == wanted))
            .collect();
        // Names without a namespace mean the default one first, as everywhere.
        if meant.len() > 1
            && wanted_namespace.is_none()
            && meant.iter().any(|one| one.namespace() == "default")
        {
            meant.retain(|one| one.namespace() == "default" || one.namespace().is_empty());
        }
        // A pod is often called like its claim, and then its story has the claim's in it.
        if meant.len() == 2
            && let [claim @ Self::Claim { .. }, pod @ Self::Pod { .. }] = &meant[..]
            && uses(index, pod, claim)
        {
            meant.remove(0);
        }
        match &meant[..] {
            [one] => Ok(one.clone()),
            [] => Err(SubjectError::Unknown {
                text: text.to_owned(),
                near: near(index, kind, wanted),
            }),
            several => Err(SubjectError::Ambiguous {
                text: text.to_owned(),
                meant: several.iter().map(Self::exact).collect(),
            }),
        }
    }

    /// The volumes that it is about.
    #[must_use]
    pub fn volumes(&self, index: &Index<'_>) -> Vec<String> {
        let of_claim = |claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
            let volume = cluster_core::wire::claim(claim).volume?;
            crate::index::handle(index.persistent_volume(volume.as_str())?).map(str::to_owned)
        };
        match self {
            Self::Volume { name } => vec![name.clone()],
            Self::Claim { namespace, name } => {
                let claim = index.claim(namespace, name);
                claim.and_then(of_claim).into_iter().collect()
            }
            Self::Pod { .. } => {
                let claims = index.dump.claims.iter();
                let used = claims.filter(|claim| {
                    let claim = Self::Claim {
                        namespace: namespace(&claim.metadata).to_owned(),
                        name: name(&claim.metadata).to_owned(),
                    };
                    uses(index, self, &claim)
                });
                used.filter_map(of_claim).collect()
            }
        }
    }

    /// Its claims that have no volume: itself, or those of the pod.
    #[must_use]
    pub fn claims_without_volume(&self, index: &Index<'_>) -> Vec<Self> {
        let all = index.dump.claims.iter();
        let bare = all.filter(|claim| cluster_core::wire::claim(claim).volume.is_none());
        let bare = bare.map(|claim| Self::Claim {
            namespace: namespace(&claim.metadata).to_owned(),
            name: name(&claim.metadata).to_owned(),
        });
        bare.filter(|claim| claim == self || uses(index, self, claim))
            .collect()
    }

    fn all<'a>(index: &'a Index<'_>) -> impl Iterator<Item = Self> + 'a {
        let volumes = index.volume_names().map(|name| Self::Volume {
            name: name.to_owned(),
        });
        let claims = index.dump.claims.iter().map(|claim| Self::Claim {
            namespace: namespace(&claim.metadata).to_owned(),
            name: name(&claim.metadata).to_owned(),
        });
        let pods = index.dump.pods.iter().map(|pod| Self::Pod {
            namespace: namespace(&pod.metadata).to_owned(),
            name: name(&pod.metadata).to_owned(),
        });
        volumes.chain(claims).chain(pods)
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Volume { .. } => "volume",
            Self::Claim { .. } => "pvc",
            Self::Pod { .. } => "pod",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Volume { name } | Self::Claim { name, .. } | Self::Pod { name, .. } => name,
        }
    }

    fn namespace(&self) -> &str {
        match self {
            Self::Volume { .. } => "",
            Self::Claim { namespace, .. } | Self::Pod { namespace, .. } => namespace,
        }
    }

    /// As it has to be typed to mean nothing else.
    pub(crate) fn exact(&self) -> String {
        match self {
            Self::Volume { name } => format!("volume/{name}"),
            _ => format!("{}/{}/{}", self.kind(), self.namespace(), self.name()),
        }
    }
}

fn uses(index: &Index<'_>, pod: &Subject, claim: &Subject) -> bool {
    let Some(object) = index.claim(claim.namespace(), claim.name()) else {
        return false;
    };
    let same = |other: &&k8s_openapi::api::core::v1::Pod| {
        name(&other.metadata) == pod.name() && namespace(&other.metadata) == pod.namespace()
    };
    index.pods_of(object).iter().any(same)
}

fn near(index: &Index<'_>, kind: Option<&str>, wanted: &str) -> Vec<String> {
    let mut scored: Vec<(f64, String)> = Subject::all(index)
        .filter(|one| kind.is_none_or(|kind| one.kind() == kind))
        .map(|one| {
            let begins = wanted.len() >= 3 && one.name().starts_with(wanted);
            let score = strsim::jaro_winkler(one.name(), wanted);
            (if begins { 1.0 } else { score }, one.exact())
        })
        .filter(|(score, _)| *score >= SIMILARITY_MIN)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    scored
        .into_iter()
        .take(SUGGESTIONS_MAX)
        .map(|(_, name)| name)
        .collect()
}
