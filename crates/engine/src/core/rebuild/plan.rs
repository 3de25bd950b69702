//! What a rebuild copies: every snapshot of the source.

use std::collections::BTreeMap;

use block_core::SnapshotName;
use block_core::wire::request::RebuildLayer;
use block_core::wire::{LayerInfo, LayerRef};

/// All snapshots, parents before children and `top`, on which the live volume stands, last. Those that a revert has left beside the
/// live volume are a part of it: a target keeps nothing that it is not told of. Each with what it takes at the source.
pub(super) fn layers_to_copy(
    layers: &[LayerInfo],
    top: Option<&SnapshotName>,
) -> Vec<(RebuildLayer, u64)> {
    let snapshots: BTreeMap<&SnapshotName, &LayerInfo> = layers
        .iter()
        .filter_map(|layer| match &layer.layer {
            LayerRef::Snapshot(name) => Some((name, layer)),
            LayerRef::Head => None,
        })
        .collect();
    // A replica that says that parents form a circle is refused by the target; here it only must not go on for ever.
    let depth = |layer: &LayerInfo| {
        let below = |layer: &&LayerInfo| snapshots.get(layer.parent.as_ref()?).copied();
        let path = std::iter::successors(Some(layer), below);
        path.take(layers.len()).count()
    };
    let mut ordered: Vec<(&SnapshotName, &LayerInfo)> = snapshots
        .iter()
        .map(|(name, layer)| (*name, *layer))
        .collect();
    ordered.sort_by_key(|(name, layer)| (Some(*name) == top, depth(layer)));
    ordered
        .into_iter()
        .map(|(name, layer)| {
            let planned = RebuildLayer {
                name: name.clone(),
                parent: layer.parent.clone(),
                created_unix_ms: layer.created_unix_ms,
                user_created: layer.user_created,
                removed: layer.removed,
                size_bytes: layer.size_bytes,
            };
            (planned, layer.allocated_bytes)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SnapshotName {
        SnapshotName::new(text).expect("a plain name")
    }

    fn layer(snapshot: LayerRef, parent: &str) -> LayerInfo {
        LayerInfo {
            layer: snapshot,
            parent: (parent != "-").then(|| name(parent)),
            created_unix_ms: 1,
            user_created: true,
            removed: false,
            size_bytes: 4096,
            allocated_bytes: 4096,
            digest: None,
        }
    }

    /// Pairs of a layer and its parent, as a replica lists them: in the order of its numbers, which say nothing after a rebuild.
    #[test]
    fn parents_come_before_children_and_the_live_volume_last() {
        for (listed, top, expected) in [
            ("", "-", ""),
            ("r/-", "r", "r"),
            ("a/- b/a r/b", "r", "a b r"),
            ("r/b b/a a/-", "r", "a b r"),
            ("a/- b/a c/b r/a", "r", "a b c r"),
            ("r/a c/b b/a a/- d/c", "r", "a b c d r"),
            ("a/- z/- b/z r/a", "r", "a z b r"),
            ("a/b b/a r/a", "r", "a b r"),
        ] {
            let mut layers = vec![layer(LayerRef::Head, top)];
            layers.extend(listed.split_whitespace().map(|pair| {
                let (own, parent) = pair.split_once('/').expect("a pair");
                layer(LayerRef::Snapshot(name(own)), parent)
            }));
            let top = layers[0].parent.clone();
            let found = layers_to_copy(&layers, top.as_ref());
            let found: Vec<&str> = found.iter().map(|(layer, _)| layer.name.as_str()).collect();
            assert_eq!(found.join(" "), expected, "{listed}");
        }
    }
}
