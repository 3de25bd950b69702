//! The CSI services through which a container orchestrator uses volumes.
