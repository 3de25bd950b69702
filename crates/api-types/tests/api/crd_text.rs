//! The CRDs as text: what `kubectl apply` gets, snapshot by snapshot, so that every change is seen.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Deserialize;

use crate::kinds::every_crd;

#[test]
fn crds_are_as_reviewed() {
    for crd in every_crd() {
        let name = crd.metadata.name.clone().unwrap();
        insta::assert_snapshot!(name, serde_saphyr::to_string(&crd).unwrap());
    }
}

#[test]
fn descriptions_are_for_people_who_run_kubectl_explain() {
    let yaml = api_types::crds_yaml().unwrap();
    assert!(
        !yaml.contains("[`"),
        "a description has a link that only rustdoc follows"
    );
    assert!(
        !yaml.contains("Auto-generated"),
        "a kind has no description of its own"
    );
}

#[test]
fn yaml_and_json_hold_the_same_crds() {
    let crds = api_types::all_crds();

    let yaml = api_types::crds_yaml().unwrap();
    let from_yaml: Vec<CustomResourceDefinition> = serde_saphyr::from_multiple(&yaml).unwrap();
    assert_eq!(from_yaml, crds);

    #[derive(Deserialize)]
    struct List {
        kind: String,
        items: Vec<CustomResourceDefinition>,
    }
    let json = api_types::crds_json().unwrap();
    let from_json: List = serde_json::from_str(&json).unwrap();
    assert_eq!(from_json.kind, "List");
    assert_eq!(from_json.items, crds);
}
