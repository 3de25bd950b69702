//! What an engine says by itself and people are to see on the Volume.

use api_types::{Volume, names};
use engine::control::Notice;
use events::EventKind;
use kube::{Api, Resource as _};

use super::Actor;

/// An event about the volume.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    kind: EventKind,
    reason: &'static str,
    message: String,
}

impl Actor {
    /// Tells each of them once. Nobody waits for it: what the engine needs is more urgent.
    pub(super) fn tell_of_notices(&mut self) {
        let Some(process) = &mut self.process else {
            return;
        };
        let told: Vec<Told> = {
            let pushed = process.pushed.borrow();
            let since = std::mem::replace(&mut process.told, pushed.count);
            pushed.notices_since(since).filter_map(event_of).collect()
        };
        if told.is_empty() {
            return;
        }
        let (context, name) = (self.context.clone(), self.volume.clone());
        tokio::spawn(async move {
            let volumes: Api<Volume> = Api::namespaced(context.client.clone(), names::NAMESPACE);
            // An event without the volume's identity would not be shown with it.
            let Ok(volume) = volumes.get(&name).await else {
                return;
            };
            let about = volume.object_ref(&());
            for Told {
                kind,
                reason,
                message,
            } in told
            {
                context
                    .recorder
                    .record(&about, kind, reason, &message)
                    .await;
            }
        });
    }
}

/// Most of what engines say is seen in the objects' status.
fn event_of(notice: &Notice) -> Option<Told> {
    match notice {
        Notice::DeviceMadeAnew { why } => Some(Told {
            kind: EventKind::Warning,
            reason: "DeviceMadeAnew",
            message: format!(
                "users of the device get I/O errors and have to open it again: it could not be taken over from the engine that died: {why}"
            ),
        }),
        Notice::Opened { .. }
        | Notice::Ready { .. }
        | Notice::FrontendFailed { .. }
        | Notice::MemberConnected { .. }
        | Notice::MemberFailed { .. }
        | Notice::LastMemberLost { .. }
        | Notice::InSyncChanged { .. }
        | Notice::CommitRefused { .. }
        | Notice::RebuildStarted { .. }
        | Notice::RebuildInterrupted { .. }
        | Notice::RebuildFinished { .. }
        | Notice::RebuildFailed { .. }
        | Notice::Reconciled { .. }
        | Notice::Fenced { .. }
        | Notice::WantsTakeOver => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_of_a_device_that_was_made_anew_are_warned() {
        let why = "no resend".to_owned();
        let told = event_of(&Notice::DeviceMadeAnew { why }).expect("an event");
        assert_eq!(
            (told.kind, told.reason),
            (EventKind::Warning, "DeviceMadeAnew")
        );
        assert!(told.message.contains("no resend"), "{told:?}");
        assert_eq!(event_of(&Notice::Opened { epoch: 1 }), None);
    }
}
