//! The handshake: both sides prove that they hold the volume's key, and nobody sends it.
//!
//! ```text
//! client                                  replica
//!   Hello { versions, volume, nonce c }     →
//!   ←  Challenge { version, nonce s, proof of the replica over everything so far }
//!   Prove { proof of the client over everything so far }     →
//!   ←  Welcome { limits, state of the volume }
//! ```
//!
//! A proof is BLAKE3 keyed with the volume's key over the side's role, the versions, the volume and both nonces, so
//! that neither a proof of the other side nor one of an older handshake can be played back. On an encrypted line it also covers
//! what only the two ends of that line know, so that it cannot be passed on by somebody in between.

use std::fmt;

use crate::names::VolumeName;

/// The secret that the engine and the replicas of one volume share.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey([u8; 32]);

impl VolumeKey {
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A key for one volume out of a secret that a site shares, so that only the secret needs to be handed out.
    #[must_use]
    pub fn derive(secret: &[u8], volume: &VolumeName) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("lariat 2026 replica volume key v1");
        hasher.update(&(secret.len() as u64).to_le_bytes());
        hasher.update(secret);
        hasher.update(volume.as_str().as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for VolumeKey {
    /// Keys do not belong into logs.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("VolumeKey(…)")
    }
}

/// A number used once, from the operating system's random source.
pub type Nonce = [u8; 32];
/// What only a holder of the key can compute.
pub type Proof = [u8; 32];

/// The other side does not hold the volume's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("the replica does not have this volume's key")]
    WrongReplicaProof,
    #[error("the client does not have this volume's key")]
    WrongClientProof,
}

/// Everything that both sides said, which both proofs cover.
#[derive(Clone, Copy, Debug)]
pub struct Transcript<'a> {
    pub versions_offered: (u8, u8),
    pub version_chosen: u8,
    pub volume: &'a VolumeName,
    pub client_nonce: &'a Nonce,
    pub replica_nonce: &'a Nonce,
    /// What the ends of an encrypted line have in common; none on a plain one.
    pub line_binding: Option<&'a [u8; 32]>,
}

impl Transcript<'_> {
    #[must_use]
    pub fn replica_proof(&self, key: &VolumeKey) -> Proof {
        *self.keyed_hash(key, b"lariat replica proof").as_bytes()
    }

    #[must_use]
    pub fn client_proof(&self, key: &VolumeKey) -> Proof {
        *self.keyed_hash(key, b"lariat client  proof").as_bytes()
    }

    pub fn check_replica_proof(&self, key: &VolumeKey, proof: &Proof) -> Result<(), AuthError> {
        // `blake3::Hash` compares in constant time.
        let wanted = blake3::Hash::from_bytes(self.replica_proof(key));
        if wanted == *proof {
            Ok(())
        } else {
            Err(AuthError::WrongReplicaProof)
        }
    }

    pub fn check_client_proof(&self, key: &VolumeKey, proof: &Proof) -> Result<(), AuthError> {
        let wanted = blake3::Hash::from_bytes(self.client_proof(key));
        if wanted == *proof {
            Ok(())
        } else {
            Err(AuthError::WrongClientProof)
        }
    }

    /// All fields but the last have a fixed length, and the one that may be missing is told from what follows it, so no two
    /// transcripts give the same input.
    fn keyed_hash(&self, key: &VolumeKey, role: &[u8; 20]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(key.as_bytes());
        hasher.update(role);
        hasher.update(&[
            self.versions_offered.0,
            self.versions_offered.1,
            self.version_chosen,
        ]);
        hasher.update(self.client_nonce);
        hasher.update(self.replica_nonce);
        if let Some(binding) = self.line_binding {
            // No name of a volume begins with a zero byte.
            hasher.update(&[0]);
            hasher.update(binding);
        }
        hasher.update(self.volume.as_str().as_bytes());
        hasher.finalize()
    }
}
