//! What runs on each node: replicas, engines, their devices, and the node's own objects.
