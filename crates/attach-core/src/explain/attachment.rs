//! Tickets that do not parse must not take their neighbours with them, nor vanish: a volume must not look
//! unwanted because of a typing mistake.

use std::collections::BTreeMap;

use api_types::AttachmentTicket;
use serde_json::{Map, Value};

use crate::ticket::Defect;

/// Replaces each ticket that cannot be read by what can be read of it, and says what is wrong with it.
pub(super) fn outline_unreadable_tickets(attachment: &mut Value) -> BTreeMap<String, Defect> {
    let mut defects = BTreeMap::new();
    let tickets = attachment
        .pointer_mut("/spec/attachmentTickets")
        .and_then(Value::as_object_mut);
    for (key, ticket) in tickets.into_iter().flatten() {
        let Err(error) = serde_path_to_error::deserialize::<_, AttachmentTicket>(&*ticket) else {
            continue;
        };
        let field = error.path().to_string();
        defects.insert(
            key.clone(),
            Defect::Unreadable {
                field,
                message: error.into_inner().to_string(),
            },
        );
        *ticket = outline(ticket);
    }
    defects
}

fn outline(ticket: &Value) -> Value {
    let readable = ["id", "type", "nodeID"].into_iter().filter_map(|field| {
        let text = ticket.get(field)?.as_str()?;
        Some((field.to_owned(), text.into()))
    });
    let mut outline: Map<String, Value> = readable.collect();
    // It may hold the volume as it is, whatever that is.
    outline.insert(
        "parameters".to_owned(),
        serde_json::json!({ "disableFrontend": "any" }),
    );
    outline.into()
}
