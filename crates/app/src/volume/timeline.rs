//! `lariat volume timeline`: the hops of a volume's attachments as a waterfall.

use std::fmt::Write as _;

use anyhow::Result;
use api_types::Volume;
use api_types::names::{NAMESPACE, annotation};
use controllers::timeline::{Direction, Passage, read};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt as _};

use crate::inventory::{api_error, unknown_volume};

/// The columns that the longest passage fills.
const BAR_COLUMNS: u64 = 40;
/// From here on nobody counts tenths of a millisecond.
const MILLISECONDS_BELOW_US: u64 = 10_000_000;

/// The passages that are kept of a volume, oldest first.
pub(crate) async fn passages(client: &Client, name: &str) -> Result<Vec<Passage>> {
    let volumes: Api<Volume> = Api::namespaced(client.clone(), NAMESPACE);
    let volume = volumes
        .get_opt(name)
        .await
        .map_err(|error| api_error(error, "read volume", name))?;
    let Some(volume) = volume else {
        return Err(unknown_volume(client, name).await);
    };
    let kept = volume.annotations().get(annotation::TIMELINE);
    Ok(kept.map(|text| read(text)).unwrap_or_default())
}

/// All of them, with an empty line after each.
pub(crate) fn shown(volume: &str, passages: &[Passage]) -> String {
    if passages.is_empty() {
        return format!("no attachment of {volume} was seen from its beginning to its end yet\n");
    }
    let shown = passages.iter().map(|one| render(volume, one) + "\n");
    shown.collect()
}

/// One line a hop: when, how long after the one before, and a bar from that one to this.
#[must_use]
pub(crate) fn render(volume: &str, passage: &Passage) -> String {
    let total = passage.hops.last().map_or(0, |stamp| stamp.after_us).max(1);
    let way = match passage.direction {
        Direction::Attach => "to",
        Direction::Detach => "from",
    };
    let started = i64::try_from(passage.started_ms).ok();
    let started = started.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    let started = started.map(|at| format!(" at {at:.3}")).unwrap_or_default();
    let mut text = format!(
        "{volume} {way} {}: {}{started}\n",
        passage.node,
        milliseconds(total)
    );
    let mut before = 0;
    for stamp in &passage.hops {
        let from = column(before, total);
        let to = column(stamp.after_us, total).max(from + 1);
        let bar = format!("{}{}", " ".repeat(from), "█".repeat(to - from));
        let took = stamp.after_us.saturating_sub(before);
        let width = usize::try_from(BAR_COLUMNS).unwrap_or(0) + 1;
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "  {:>9}  {:>10}  {bar:<width$} {}",
            milliseconds(stamp.after_us),
            format!("+{}", milliseconds(took)),
            stamp.hop.sentence(),
        );
        before = stamp.after_us;
    }
    text
}

fn column(us: u64, total: u64) -> usize {
    usize::try_from(us * BAR_COLUMNS / total).unwrap_or(0)
}

/// Milliseconds as long as they fit their column, and seconds then.
fn milliseconds(us: u64) -> String {
    if us >= MILLISECONDS_BELOW_US {
        return format!("{}.{} s", us / 1_000_000, us % 1_000_000 / 100_000);
    }
    format!("{}.{} ms", us / 1000, us % 1000 / 100)
}

#[cfg(test)]
mod tests {
    use controllers::timeline::{Hop, Stamp};

    use super::*;
    use crate::output::{Format, document, golden};

    #[test]
    fn a_passage_is_a_waterfall() {
        let stamp = |hop, after_us| Stamp { hop, after_us };
        let passage = Passage {
            node: "node-2".to_owned(),
            direction: Direction::Attach,
            started_ms: 1_763_251_200_123,
            hops: vec![
                stamp(Hop::PodScheduled, 0),
                stamp(Hop::AttachmentCreated, 50_000),
                stamp(Hop::PodRunning, 100_000),
            ],
        };
        let left = Passage {
            direction: Direction::Detach,
            hops: vec![
                stamp(Hop::PodLeaving, 0),
                stamp(Hop::TicketWithdrawn, 1_234),
                stamp(Hop::AttachmentGone, 12_345_678),
            ],
            ..passage.clone()
        };
        let passages: &[Passage] = &[passage, left];
        let mut page = shown("pvc-1", passages);
        page += &shown("scratch", &[]);
        golden::check("volume-timeline", &page);
        for (name, format) in [("json", Format::Json), ("yaml", Format::Yaml)] {
            let text = document(&passages, format).unwrap();
            golden::check(&format!("volume-timeline-{name}"), &text);
        }
    }
}
