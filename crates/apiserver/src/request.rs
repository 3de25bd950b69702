//! What a client asks for: the URL, taken apart once, before anything else happens.

use std::collections::BTreeMap;

use http::Method;
use serde_json::json;

use crate::field_error::FieldError;
use crate::status::ApiError;

/// The parts of a resource URL. `/api/v1/namespaces/default/pods/web-0/status` and friends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcePath {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// The legacy `/watch/` prefix was there: a get or list is a watch.
    pub watch_prefix: bool,
}

/// Where a URL leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    Resource(ResourcePath),
    /// `/api`, `/apis`
    Groups {
        legacy: bool,
    },
    /// `/apis/GROUP`
    Group(String),
    /// `/api/v1`, `/apis/GROUP/VERSION`
    GroupVersion {
        group: String,
        version: String,
    },
    OpenApiV2,
    OpenApiV3Index,
    OpenApiV3 {
        group: String,
        version: String,
    },
    Version,
    /// `/livez`, `/readyz`, `/healthz`, with an optional single check.
    Health(String),
    Metrics,
    /// `/`: the list of paths.
    Root,
    Unknown,
}

/// Decides by the path alone.
pub fn route(path: &str) -> Route {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    match parts.as_slice() {
        [] => Route::Root,
        ["api"] => Route::Groups { legacy: true },
        ["apis"] => Route::Groups { legacy: false },
        ["apis", group] => Route::Group((*group).to_owned()),
        ["api", version] => Route::GroupVersion {
            group: String::new(),
            version: (*version).to_owned(),
        },
        ["apis", group, version] => Route::GroupVersion {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        },
        ["api", version, rest @ ..] => resource_route("", version, rest),
        ["apis", group, version, rest @ ..] => resource_route(group, version, rest),
        ["openapi", "v2"] => Route::OpenApiV2,
        ["openapi", "v3"] => Route::OpenApiV3Index,
        ["openapi", "v3", "api", version] => Route::OpenApiV3 {
            group: String::new(),
            version: (*version).to_owned(),
        },
        ["openapi", "v3", "apis", group, version] => Route::OpenApiV3 {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
        },
        ["version"] => Route::Version,
        ["livez" | "readyz" | "healthz", ..] => Route::Health(parts[0].to_owned()),
        ["metrics"] => Route::Metrics,
        _ => Route::Unknown,
    }
}

fn resource_route(group: &str, version: &str, rest: &[&str]) -> Route {
    let (watch_prefix, rest) = match rest {
        ["watch", rest @ ..] if !rest.is_empty() => (true, rest),
        _ => (false, rest),
    };
    let path = |namespace: Option<&str>, plural: &str, rest: &[&str]| {
        let (name, subresource) = match rest {
            [] => (None, None),
            [name] => (Some(*name), None),
            [name, subresource] => (Some(*name), Some(*subresource)),
            _ => return Route::Unknown,
        };
        Route::Resource(ResourcePath {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
            watch_prefix,
        })
    };
    match rest {
        // `/namespaces/x/status` and `/namespaces/x/finalize` belong to the namespace itself;
        // every other third part is a resource inside it.
        ["namespaces", name, sub @ ("status" | "finalize")] if group.is_empty() => {
            path(None, "namespaces", &[name, sub])
        }
        ["namespaces", namespace, plural, rest @ ..] => path(Some(namespace), plural, rest),
        [plural, rest @ ..] => path(None, plural, rest),
        [] => Route::Unknown,
    }
}

/// Query parameters, decoded. A parameter given twice keeps its first value, as Go's `Get` does.
#[derive(Clone, Debug, Default)]
pub struct Query {
    values: BTreeMap<String, String>,
}

impl Query {
    pub fn parse(query: Option<&str>) -> Self {
        let mut values = BTreeMap::new();
        for pair in query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty())
        {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            values
                .entry(percent_decode(key))
                .or_insert_with(|| percent_decode(value));
        }
        Self { values }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("false" | "0" | "False" | "FALSE" | "f" | "F") => Ok(false),
            Some("true" | "1" | "True" | "TRUE" | "t" | "T") => Ok(true),
            Some(other) => Err(ApiError::bad_request(format!(
                "{name}: {other:?} is neither true nor false"
            ))),
        }
    }

    /// A whole number. Whoever asks says what a negative one means; most parameters then count as absent.
    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiError> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    ApiError::bad_request(format!("{name}: {text:?} is not a whole number"))
                })
            })
            .transpose()
    }

    /// `dryRun=All` is the only mode there is.
    pub fn dry_run(&self) -> Result<bool, FieldError> {
        match self.get("dryRun") {
            None => Ok(false),
            Some("All") => Ok(true),
            Some(other) => Err(FieldError::not_supported(
                "dryRun",
                json!([other]),
                &["All"],
            )),
        }
    }
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let ahead = rest.clone().take(2).collect::<Vec<u8>>();
                let decoded = std::str::from_utf8(&ahead)
                    .ok()
                    .filter(|digits| digits.len() == 2)
                    .and_then(|digits| u8::from_str_radix(digits, 16).ok());
                if let Some(decoded) = decoded {
                    bytes.push(decoded);
                    rest.nth(1);
                } else {
                    bytes.push(b'%');
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A verb in Kubernetes' sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    pub fn of(method: &Method, path: &ResourcePath, query: &Query) -> Result<Self, ApiError> {
        let named = path.name.is_some();
        match *method {
            Method::GET | Method::HEAD => {
                if path.watch_prefix || query.flag("watch")? {
                    Ok(Self::Watch)
                } else if named {
                    Ok(Self::Get)
                } else {
                    Ok(Self::List)
                }
            }
            // A subresource such as `pods/x/binding` is created by a POST to its name.
            Method::POST if !named || path.subresource.is_some() => Ok(Self::Create),
            Method::PUT if named => Ok(Self::Update),
            Method::PATCH if named => Ok(Self::Patch),
            Method::DELETE if named => Ok(Self::Delete),
            Method::DELETE => Ok(Self::DeleteCollection),
            _ => Err(ApiError::method_not_allowed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, expected: &str) {
        let Route::Resource(found) = route(path) else {
            panic!("{path} is no resource")
        };
        let shown = format!(
            "{}|{}|{}|{}|{}|{}{}",
            found.group,
            found.version,
            found.namespace.as_deref().unwrap_or("-"),
            found.plural,
            found.name.as_deref().unwrap_or("-"),
            found.subresource.as_deref().unwrap_or("-"),
            if found.watch_prefix { "|watch" } else { "" },
        );
        assert_eq!(shown, expected, "{path}");
    }

    #[test]
    fn resource_paths() {
        check("/api/v1/pods", "|v1|-|pods|-|-");
        check("/api/v1/namespaces", "|v1|-|namespaces|-|-");
        check("/api/v1/namespaces/a", "|v1|-|namespaces|a|-");
        check("/api/v1/namespaces/a/status", "|v1|-|namespaces|a|status");
        check(
            "/api/v1/namespaces/a/pods/b/binding",
            "|v1|a|pods|b|binding",
        );
        check("/api/v1/watch/namespaces/a/pods", "|v1|a|pods|-|-|watch");
        check(
            "/apis/longhorn.io/v1beta2/namespaces/l/volumes/v",
            "longhorn.io|v1beta2|l|volumes|v|-",
        );
        check(
            "/apis/storage.k8s.io/v1/volumeattachments/c/status",
            "storage.k8s.io|v1|-|volumeattachments|c|status",
        );
    }

    #[test]
    fn other_paths() {
        assert_eq!(route("/"), Route::Root);
        assert_eq!(route("/apis"), Route::Groups { legacy: false });
        assert_eq!(
            route("/apis/longhorn.io"),
            Route::Group("longhorn.io".into())
        );
        assert_eq!(route("/readyz/etcd"), Route::Health("readyz".into()));
        assert_eq!(route("/api/v1/namespaces/a/pods/b/c/d"), Route::Unknown);
        assert_eq!(route("/nothing/here"), Route::Unknown);
    }

    #[test]
    fn query_parameters_are_decoded() {
        let query = Query::parse(Some(
            "labelSelector=app%3Ddb%2Cx&limit=5&a=1+2&bad=%zz&watch=",
        ));
        assert_eq!(query.get("labelSelector"), Some("app=db,x"));
        assert_eq!(query.number("limit").unwrap(), Some(5));
        assert_eq!(query.get("a"), Some("1 2"));
        assert_eq!(query.get("bad"), Some("%zz"));
        assert!(!query.flag("watch").unwrap());
        assert_eq!(query.number("a").unwrap_err().code, 400);
    }
}
