//! Lariat on a real Kubernetes: the real API with its authorisation, the real binder, scheduler and attach-detach
//! controller, the real external-provisioner and external-attacher. Only kubelets are missing: `lariat node run --embedded`
//! stands in for them.
//!
//! Run by `cargo xtask conformance kubernetes`, which builds the programs and says where they are (`LARIAT_KUBERNETES_BIN`).
//! Ordinary test runs leave it out.

mod control_plane;
#[path = "../attacher/driver.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod driver;
mod failures;
mod flow;
mod installation;
mod migration;
mod repair;
mod snapshots;
mod storm;
#[path = "../support/mod.rs"]
mod support;

/// Each story once with either attacher: whoever has a volume cannot tell which it was.
macro_rules! stories {
    ($($module:ident::$story:ident),* $(,)?) => {
        mod through_lariat_attacher {
            $(#[test] fn $story() { crate::$module::$story(crate::installation::Attacher::Lariat); })*
        }
        mod through_csi_attacher {
            $(#[test] fn $story() { crate::$module::$story(crate::installation::Attacher::External); })*
        }
    };
}

stories!(
    flow::a_claim_and_a_pod_get_a_mounted_volume_and_leave_nothing,
    failures::a_node_that_is_out_of_service_gives_its_volume_away,
    failures::a_node_that_comes_back_lets_its_evicted_pods_volume_go,
    failures::another_manager_takes_over_when_the_leader_is_killed,
    migration::a_volume_moves_to_another_node_while_it_is_used,
    snapshots::snapshots_come_and_go_by_the_rights_of_the_manifests,
);
