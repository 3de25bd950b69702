//! Objects as watches bring them.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicResourceScope;
use kube::{Api, Resource};
use serde::{Deserialize, Deserializer};

/// An object that lies where it will stay from the moment that it is read. Objects of Kubernetes are structs of kilobytes, and a page of a
/// list has thousands: moving them from hand to hand costs more than reading them.
#[derive(Clone, Debug)]
pub(crate) struct Settled<K>(pub Arc<K>);

/// The same objects.
pub(crate) fn settled<K>(api: Api<K>) -> Api<Settled<K>>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let namespace = api.namespace().map(str::to_owned);
    match namespace {
        Some(namespace) => Api::namespaced_with(api.into_client(), &namespace, &()),
        None => Api::all(api.into_client()),
    }
}

/// Who wrote which field is often the larger part of an object, and nobody here asks; an update without it leaves it as
/// it is. Only of Leases it is kept: it has the time of their last renewal by the server's clock.
pub(crate) fn forget_field_owners<K: Resource<DynamicType = ()>>(object: &mut K) {
    if K::kind(&()) != "Lease" {
        object.meta_mut().managed_fields = None;
    }
}

impl<'de, K> Deserialize<'de> for Settled<K>
where
    K: Resource<DynamicType = ()> + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = K::deserialize(deserializer)?;
        forget_field_owners(&mut object);
        Ok(Self(Arc::new(object)))
    }
}

impl<K: Resource<DynamicType = ()> + Clone> Resource for Settled<K> {
    type DynamicType = ();
    type Scope = DynamicResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        K::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        K::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        K::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        K::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        Arc::make_mut(&mut self.0).meta_mut()
    }
}
