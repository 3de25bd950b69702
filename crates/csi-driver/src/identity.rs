//! Who we are, and whether we are ready.

use std::sync::Arc;

use api_types::names;
use tonic::{Request, Response, Status, async_trait};

use crate::csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
    identity_server::Identity,
    plugin_capability::{
        Service, Type, VolumeExpansion, service::Type as ServiceType,
        volume_expansion::Type as ExpansionType,
    },
};

/// The Identity service, which goes with the Controller service and with the Node service.
#[derive(Clone)]
pub struct IdentityService {
    capabilities: Vec<Type>,
    ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl IdentityService {
    /// For a socket with the Controller service. `ready` says whether its cache is filled.
    pub fn for_controller(expansion: bool, ready: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        let mut capabilities = vec![Type::Service(Service {
            r#type: ServiceType::ControllerService.into(),
        })];
        if expansion {
            capabilities.push(Type::VolumeExpansion(VolumeExpansion {
                r#type: ExpansionType::Online.into(),
            }));
        }
        Self {
            capabilities,
            ready,
        }
    }

    /// For a node's socket. Plugin capabilities speak of the whole plugin, so that they are the same here.
    pub fn for_node() -> Self {
        Self::for_controller(false, Arc::new(|| true))
    }
}

#[async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: names::DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: Default::default(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let capabilities = self.capabilities.iter().map(|capability| PluginCapability {
            r#type: Some(*capability),
        });
        Ok(Response::new(GetPluginCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse {
            ready: Some((self.ready)()),
        }))
    }
}
