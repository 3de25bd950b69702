//! Families of gauges and counters whose values are known only when they are asked for.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Writes families for a collector.
pub struct Rows<'a>(DescriptorEncoder<'a>);

impl<'a> Rows<'a> {
    #[must_use]
    pub fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self(encoder)
    }

    /// One gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let descriptor = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(descriptor)
    }

    /// A gauge for each set of labels.
    pub fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, String); N], f64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// A counter for each set of labels, counted by somebody else. The name gets `_total`.
    pub fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = ([(&'static str, String); N], u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
