//! Whether a CustomResourceDefinition makes sense, checked when it is written.
