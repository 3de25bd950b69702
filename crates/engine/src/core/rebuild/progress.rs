//! How far a rebuild is: what the layers take at the source, and how much of that the target has.

#[derive(Debug, Default)]
pub struct Progress {
    /// What each layer takes, in the order in which they are copied.
    layers_bytes: Vec<u64>,
    layers_done: usize,
    /// What the target is known to have of the layer behind those.
    in_layer_bytes: u64,
}

impl Progress {
    pub fn of(layers_bytes: Vec<u64>) -> Self {
        Self {
            layers_bytes,
            ..Self::default()
        }
    }

    pub fn total_bytes(&self) -> u64 {
        sum(&self.layers_bytes)
    }

    pub fn done_bytes(&self) -> u64 {
        let (done, left) = self.layers_bytes.split_at(self.layers_done);
        let in_layer_max = left.first().copied().unwrap_or(0);
        sum(done).saturating_add(self.in_layer_bytes.min(in_layer_max))
    }

    /// The target has this much more of the layer: it was found equal, or stored. Chunks that are compared may be larger than what is in
    /// them, and what was stored is compared as well; so it may be too much, and a layer never counts for more than it takes.
    pub fn add(&mut self, bytes: u64) {
        self.in_layer_bytes = self.in_layer_bytes.saturating_add(bytes);
    }

    pub fn layer_done(&mut self) {
        self.layers_done = self.layers_bytes.len().min(self.layers_done + 1);
        self.in_layer_bytes = 0;
    }
}

/// What a replica says that its layers take need not be true.
fn sum(layers_bytes: &[u64]) -> u64 {
    layers_bytes.iter().copied().fold(0, u64::saturating_add)
}
