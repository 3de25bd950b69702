//! What can be done with a resource: one file a verb, over one description of the call.

mod create;
mod delete;
mod list;
mod patch;
mod pods;
pub(crate) mod prepare;
mod scale;
mod update;
mod watch;

use std::sync::Arc;

use serde_json::Value;

pub use delete::{DeleteOptions, Propagation};
pub(crate) use delete::{grace_period, parse_propagation};
pub(crate) use list::parse_version;
pub use list::{ListParameters, Listing};
pub use watch::WatchParameters;

use crate::catalog::Resource;
use crate::core::{Core, read};
use crate::negotiate::PatchType;
use crate::status::ApiError;

/// How unknown and duplicate fields in a request are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Everything about a request except its body.
#[derive(Clone)]
pub struct Call {
    pub core: Arc<Core>,
    pub resource: Arc<Resource>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// Who writes, for `managedFields`.
    pub manager: String,
    pub dry_run: bool,
    pub field_validation: FieldValidation,
    /// `force` of a server-side apply.
    pub force: bool,
}

/// An object to be returned, with what the client should be warned of.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub code: u16,
    pub object: Value,
    pub warnings: Vec<String>,
    /// The object is one of the resource's own kind, and may be shown as a table.
    pub own_kind: bool,
}

impl Outcome {
    fn ok(object: Value, warnings: Vec<String>) -> Self {
        Self {
            code: 200,
            object,
            warnings,
            own_kind: true,
        }
    }
}

/// A body that was read but not understood yet.
#[derive(Clone, Debug)]
pub struct Body {
    pub value: Value,
    /// Fields that stood twice in the text; only the last one counted.
    pub duplicates: Vec<String>,
}

impl Call {
    pub fn get(&self) -> Result<Outcome, ApiError> {
        if self.subresource.as_deref() == Some("scale") {
            return self.get_scale();
        }
        let name = self.name();
        let stored = self
            .core
            .get(&self.resource, self.namespace.as_deref(), name)
            .ok_or_else(|| ApiError::not_found(&self.resource.subject(name)))?;
        Ok(Outcome::ok(read(&self.resource, &stored), vec![]))
    }

    pub async fn create(&self, body: Body) -> Result<Outcome, ApiError> {
        match self.subresource.as_deref() {
            None => self.create_object(body).await,
            Some("binding") => self.bind_pod(&body.value).await,
            Some("eviction") => self.evict_pod(&body.value).await,
            Some(_) => Err(ApiError::method_not_allowed()),
        }
    }

    pub async fn update(&self, body: Body) -> Result<Outcome, ApiError> {
        if self.subresource.as_deref() == Some("scale") {
            return self.update_scale(&body.value).await;
        }
        self.update_object(body).await
    }

    pub async fn patch(&self, patch_type: PatchType, body: &[u8]) -> Result<Outcome, ApiError> {
        if self.subresource.as_deref() == Some("scale") {
            return self.patch_scale(patch_type, body).await;
        }
        self.patch_object(patch_type, body).await
    }

    /// The name in the URL. Only calls with one reach the verbs that need it.
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }
}
