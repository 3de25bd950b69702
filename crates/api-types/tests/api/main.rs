//! What other programs may rely on: objects survive a read and a write, and a real API server accepts
//! the CRDs. One binary, because linking is most of the cost.

mod columns;
mod crd_text;
mod fixtures;
mod instances;
mod kinds;
mod round_trip;
mod structural;
