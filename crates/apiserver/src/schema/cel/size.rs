//! How large rules and values are, which bounds what running one over the other can cost.

use kube_cel::cel::common::ast::{EntryExpr, Expr, IdedEntryExpr, IdedExpr};
use serde_json::Value;

/// How large an expression is.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub nodes: u64,
    pub depth: u32,
    /// Nested macros such as `all` in `exists`: each level multiplies by the size of the value.
    pub loop_depth: u32,
}

/// How many values there are in `value`; long strings count for their length, since rules read them.
pub(super) fn size_of(value: &Value) -> u64 {
    match value {
        Value::Array(items) => items.iter().map(size_of).fold(1, u64::saturating_add),
        Value::Object(fields) => fields.values().map(size_of).fold(1, u64::saturating_add),
        Value::String(text) => 1 + text.len() as u64 / 64,
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
    }
}

pub(super) fn measure(expression: &IdedExpr) -> Size {
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => measure_all([]),
        Expr::Call(call) => measure_all(call.target.as_deref().into_iter().chain(&call.args)),
        Expr::List(list) => measure_all(&list.elements),
        Expr::Select(select) => measure_all([select.operand.as_ref()]),
        Expr::Map(map) => measure_entries(&map.entries),
        Expr::Struct(message) => measure_entries(&message.entries),
        Expr::Comprehension(comprehension) => {
            let range = measure_all([&comprehension.iter_range]);
            let body = measure_all([
                &comprehension.accu_init,
                &comprehension.loop_cond,
                &comprehension.loop_step,
                &comprehension.result,
            ]);
            Size {
                nodes: range.nodes + body.nodes,
                depth: range.depth.max(body.depth),
                loop_depth: range.loop_depth.max(body.loop_depth + 1),
            }
        }
    }
}

fn measure_all<'a>(expressions: impl IntoIterator<Item = &'a IdedExpr>) -> Size {
    let leaf = Size {
        nodes: 1,
        depth: 1,
        loop_depth: 0,
    };
    expressions
        .into_iter()
        .map(measure)
        .fold(leaf, |all, one| Size {
            nodes: all.nodes + one.nodes,
            depth: all.depth.max(one.depth + 1),
            loop_depth: all.loop_depth.max(one.loop_depth),
        })
}

fn measure_entries(entries: &[IdedEntryExpr]) -> Size {
    measure_all(entries.iter().flat_map(|entry| match &entry.expr {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }))
}
