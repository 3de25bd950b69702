//! `x-kubernetes-validations`: CEL rules, with a bound on what they may cost.
//!
//! This module finds the nodes that have rules and the old value of each; one node's rules are
//! compiled and evaluated by `kube-cel`.

mod size;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use kube_cel::{CompiledSchema, ErrorKind, ValidationError, compile_schema, validate_compiled};
use serde_json::{Value, json};

use self::size::{Size, measure, size_of};
use super::path::Path;
use super::validate::{correlate, type_name};
use super::{DEPTH_MAX, Schema, SchemaOrBool};
use crate::field_error::{FieldError, FieldErrorKind};

/// A rule's text, which bounds the work of parsing it.
pub const RULE_BYTES_MAX: usize = 8 << 10;
/// How deep brackets may nest in a rule, and how deep its expression tree may be. A sum of a hundred
/// terms is a hundred deep.
const BRACKET_DEPTH_MAX: usize = 64;
const TREE_DEPTH_MAX: u32 = 256;
/// Trees up to this depth are evaluated on the caller's stack, of which an unoptimised build takes
/// 16 KiB for each level.
const CALLER_DEPTH_MAX: u32 = 24;
/// Stacks for parsing, whose depth only the rule's length bounds, and for evaluating deep trees.
/// Untouched pages of a stack cost nothing.
const PARSER_STACK_BYTES: usize = 256 << 20;
const EVALUATION_STACK_BYTES: usize = 32 << 20;
/// How many rules one node may have.
const RULES_MAX: usize = 256;
/// Steps that all rules of one object may take together: about a second in an unoptimised build.
const COST_MAX: u64 = 10_000_000;

/// The rules of one schema node, ready to run.
pub(crate) struct RuleSet {
    compiled: CompiledSchema,
    rules: Vec<RuleFacts>,
    needs_deep_stack: bool,
    /// What is wrong with each rule that will never run, by its index.
    problems: Vec<(usize, String)>,
}

struct RuleFacts {
    text: String,
    is_transition: bool,
    size: Size,
}

/// Runs all rules that apply to `value`. Rules over `oldSelf` run only where there is an old value.
pub fn validate(schema: &Schema, value: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut walk = Walk {
        errors: Vec::new(),
        cost: 0,
    };
    let place = Place {
        path: &Path::ROOT,
        unchanged: false,
        depth: 0,
    };
    walk.node(schema, value, old, place);
    walk.errors
}

/// Whether this schema or anything in it has a rule.
pub fn has_rules(schema: &Schema) -> bool {
    !schema.validations.is_empty()
        || schema.properties.values().any(has_rules)
        || schema.items.as_deref().is_some_and(has_rules)
        || schema.additional().is_some_and(has_rules)
}

/// What is wrong with the rules of one node, each with the index of its rule.
pub(super) fn problems(schema: &Schema) -> &[(usize, String)] {
    if schema.validations.is_empty() {
        return &[];
    }
    &schema.rules().problems
}

impl Schema {
    fn rules(&self) -> &RuleSet {
        self.compiled_rules.get_or_compile(|| compile(self))
    }
}

#[derive(Clone, Copy)]
struct Place<'a> {
    path: &'a Path<'a>,
    /// This value is part of one that equals its old self, even where lists hide which part.
    unchanged: bool,
    depth: usize,
}

impl<'a> Place<'a> {
    fn inside(self, path: &'a Path<'a>) -> Place<'a> {
        Place {
            path,
            depth: self.depth + 1,
            ..self
        }
    }
}

struct Walk {
    errors: Vec<FieldError>,
    cost: u64,
}

impl Walk {
    fn node(&mut self, schema: &Schema, value: &Value, old: Option<&Value>, place: Place<'_>) {
        // Null is the absence of a value to any rule.
        if value.is_null() || place.depth > DEPTH_MAX || self.cost > COST_MAX {
            return;
        }
        let place = Place {
            unchanged: place.unchanged || old == Some(value),
            ..place
        };
        if !schema.validations.is_empty() && !self.rules(schema, value, old, place) {
            return;
        }
        match value {
            Value::Object(fields) => {
                for (name, child) in fields {
                    if let Some(child_schema) = schema.field(name) {
                        let old_child = old.and_then(|old| old.get(name));
                        let path = place.path.field(name);
                        self.node(child_schema, child, old_child, place.inside(&path));
                    }
                }
            }
            Value::Array(items) => {
                let Some(item_schema) = schema.items.as_deref() else {
                    return;
                };
                let old_items = correlate(schema, old);
                for (index, item) in items.iter().enumerate() {
                    let old_item = old_items.as_ref().and_then(|old| old.find(item));
                    let path = place.path.index(index);
                    self.node(item_schema, item, old_item, place.inside(&path));
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Runs one node's rules; false once the budget is spent.
    fn rules(
        &mut self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        place: Place<'_>,
    ) -> bool {
        let path = place.path;
        let rules = schema.rules();
        let shown = type_name(value);
        for (_, problem) in &rules.problems {
            let error = FieldError::invalid(path.or_nil(), shown.into(), problem.clone());
            self.errors.push(error);
        }
        self.cost = self.cost.saturating_add(rules.cost(size_of(value)));
        if self.cost > COST_MAX {
            self.errors.push(FieldError::invalid(
                path.or_nil(),
                shown.into(),
                "validation failed due to running out of cost budget, no further validation rules \
                 will be run",
            ));
            return false;
        }
        let old = old.filter(|old| !old.is_null());
        let run = || validate_compiled(&rules.compiled, value, old);
        let outcome = if rules.needs_deep_stack {
            on_deep_stack(EVALUATION_STACK_BYTES, run)
        } else {
            guarded(run)
        };
        match outcome {
            None => self.errors.push(FieldError::invalid(
                path.or_nil(),
                shown.into(),
                "rule evaluation error: the expression could not be evaluated",
            )),
            Some(Ok(())) => {}
            Some(Err(failures)) => {
                for failure in failures {
                    // Ratcheting: an unchanged value is only held to rules about change.
                    if !place.unchanged || rules.is_transition(&failure.rule) {
                        self.errors.push(field_error(&failure, path, shown));
                    }
                }
            }
        }
        true
    }
}

impl RuleSet {
    fn cost(&self, value_nodes: u64) -> u64 {
        self.rules
            .iter()
            .map(|rule| {
                let loops = value_nodes.saturating_pow(rule.size.loop_depth);
                rule.size.nodes.saturating_mul(loops)
            })
            .fold(value_nodes, u64::saturating_add)
    }

    fn is_transition(&self, rule: &str) -> bool {
        self.rules
            .iter()
            .any(|facts| facts.is_transition && facts.text == rule)
    }
}

fn field_error(failure: &ValidationError, path: &Path<'_>, shown: &'static str) -> FieldError {
    let kind = match failure.reason.as_deref() {
        Some("FieldValueRequired") => FieldErrorKind::Required,
        Some("FieldValueForbidden") => FieldErrorKind::Forbidden,
        Some("FieldValueDuplicate") => FieldErrorKind::Duplicate,
        Some(_) | None => FieldErrorKind::Invalid,
    };
    let detail = match failure.kind {
        ErrorKind::ValidationFailure => failure.message.trim().to_owned(),
        _ => format!("{} evaluating rule: {}", failure.message, failure.rule),
    };
    // The library saw this node as the root, so its path is the rule's `fieldPath`.
    let relative = failure.field_path.trim_start_matches('.');
    let full_path = match (path.is_root(), relative) {
        (_, "") => path.or_nil(),
        (true, relative) => relative.to_owned(),
        (false, relative) if relative.starts_with('[') => format!("{path}{relative}"),
        (false, relative) => format!("{path}.{relative}"),
    };
    let shows_value = matches!(kind, FieldErrorKind::Invalid | FieldErrorKind::Duplicate);
    FieldError {
        value: shows_value.then(|| shown.into()),
        ..FieldError::new(kind, full_path, detail)
    }
}

fn compile(schema: &Schema) -> RuleSet {
    let mut problems = Vec::new();
    let mut accepted = Vec::new();
    let mut indices = Vec::new();
    for (index, rule) in schema.validations.iter().enumerate() {
        match obvious_problem(index, rule) {
            Some(problem) => problems.push((index, problem)),
            None => {
                accepted.push(rule.clone());
                indices.push(index);
            }
        }
    }
    let mut node = shape_only(schema, 0);
    node.validations = accepted;
    let value = serde_json::to_value(&node).unwrap_or(Value::Null);
    let parsed = on_deep_stack(PARSER_STACK_BYTES, || parse(&value));
    let (compiled, outcomes) = parsed.unwrap_or_else(|| {
        let problem = "compilation failed: the expression cannot be parsed".to_owned();
        let outcomes = indices.iter().map(|_| Err(problem.clone())).collect();
        (compile_schema(&json!({})), outcomes)
    });
    let mut rules = Vec::new();
    for (index, outcome) in indices.into_iter().zip(outcomes) {
        match outcome {
            Ok(facts) => rules.push(facts),
            Err(problem) => problems.push((index, problem)),
        }
    }
    RuleSet {
        compiled,
        needs_deep_stack: rules.iter().any(|rule| rule.size.depth > CALLER_DEPTH_MAX),
        rules,
        problems,
    }
}

/// Parses a node's rules. What comes back holds only those that can run, so that the others are
/// reported by us, once; and no tree too deep to be dropped on any stack.
fn parse(node: &Value) -> (CompiledSchema, Vec<Result<RuleFacts, String>>) {
    let mut compiled = compile_schema(node);
    let mut outcomes = Vec::new();
    let mut runnable = Vec::new();
    for outcome in compiled.validations {
        let rule = match outcome {
            Ok(rule) => rule,
            Err(error) => {
                outcomes.push(Err(format!("compilation failed: {error}")));
                continue;
            }
        };
        let mut size = measure(rule.program.expression());
        if let Some(message) = &rule.message_program {
            let message = measure(message.expression());
            size.depth = size.depth.max(message.depth);
            size.loop_depth = size.loop_depth.max(message.loop_depth);
            size.nodes += message.nodes;
        }
        if size.depth > TREE_DEPTH_MAX {
            outcomes.push(Err(format!(
                "compilation failed: the expression is {} levels deep, at most {TREE_DEPTH_MAX} are \
                 allowed",
                size.depth
            )));
            continue;
        }
        outcomes.push(Ok(RuleFacts {
            text: rule.rule.rule.clone(),
            is_transition: rule.is_transition_rule,
            size,
        }));
        runnable.push(Ok(rule));
    }
    compiled.validations = runnable;
    (compiled, outcomes)
}

/// What can be said against a rule without parsing it.
fn obvious_problem(index: usize, rule: &Value) -> Option<String> {
    if index >= RULES_MAX {
        return Some(format!("must have at most {RULES_MAX} rules"));
    }
    let Some(text) = rule.get("rule").and_then(Value::as_str) else {
        return Some("rule is not specified".to_owned());
    };
    if text.trim().is_empty() {
        return Some("rule is not specified".to_owned());
    }
    let message_expression = rule.get("messageExpression").and_then(Value::as_str);
    for expression in [Some(text), message_expression].into_iter().flatten() {
        if expression.len() > RULE_BYTES_MAX {
            return Some(format!("rule must be at most {RULE_BYTES_MAX} bytes long"));
        }
        let mut depth = 0usize;
        for byte in expression.bytes() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > BRACKET_DEPTH_MAX {
                return Some(format!(
                    "rule must not nest brackets deeper than {BRACKET_DEPTH_MAX} levels"
                ));
            }
        }
    }
    None
}

/// The node as rules see it: the types and names of everything in it, without other nodes' rules,
/// and without defaults, which have been applied by now.
fn shape_only(schema: &Schema, depth: usize) -> Schema {
    if depth > DEPTH_MAX / 2 {
        return Schema::default();
    }
    let child = |schema: &Schema| shape_only(schema, depth + 1);
    Schema {
        type_name: schema.type_name.clone(),
        format: schema.format.clone(),
        int_or_string: schema.int_or_string,
        preserve_unknown_fields: schema.preserve_unknown_fields,
        embedded_resource: schema.embedded_resource,
        properties: schema
            .properties
            .iter()
            .map(|(name, property)| (name.clone(), child(property)))
            .collect(),
        items: schema.items.as_deref().map(|items| Box::new(child(items))),
        additional_properties: schema.additional_properties.as_deref().map(|additional| {
            Box::new(match additional {
                SchemaOrBool::Bool(any) => SchemaOrBool::Bool(*any),
                SchemaOrBool::Schema(schema) => SchemaOrBool::Schema(child(schema)),
            })
        }),
        ..Schema::default()
    }
}

/// The parser and the interpreter are foreign code that meets users' text: a bug in them must cost
/// one answer, not the server.
fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Like [`guarded`], for work that recurses deeper than a server's thread allows.
fn on_deep_stack<T: Send>(stack_bytes: usize, work: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().stack_size(stack_bytes);
        builder.spawn_scoped(scope, work).ok()?.join().ok()
    })
}

#[cfg(test)]
mod tests;
