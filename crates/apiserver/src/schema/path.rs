//! Where in an object a walk is, without allocating until somebody must be told.

use std::fmt;

/// A place in an object: a chain of steps that lives on the walker's stack.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub const ROOT: Path<'static> = Path {
        parent: None,
        step: Step::Root,
    };

    /// A named field: `spec.size`.
    pub fn field(&'a self, name: &'a str) -> Path<'a> {
        self.then(Step::Field(name))
    }

    /// One key of a map, as hand-written rules show it: `data[my.key]`.
    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        self.then(Step::Key(key))
    }

    /// One item of a list: `spec.containers[0]`.
    pub fn index(&'a self, index: usize) -> Path<'a> {
        self.then(Step::Index(index))
    }

    pub fn is_root(&self) -> bool {
        matches!(self.step, Step::Root)
    }

    /// The path as errors show it, where the object itself is `<nil>`.
    pub fn or_nil(&self) -> String {
        let text = self.to_string();
        if text.is_empty() {
            "<nil>".to_owned()
        } else {
            text
        }
    }

    fn then(&'a self, step: Step<'a>) -> Path<'a> {
        Path {
            parent: Some(self),
            step,
        }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.write(f)?;
        }
        let first = self.parent.is_none_or(Path::is_root);
        match self.step {
            Step::Root => Ok(()),
            Step::Field(name) if first => f.write_str(name),
            Step::Field(name) => write!(f, ".{name}"),
            Step::Key(key) => write!(f, "[{key}]"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f)
    }
}

impl From<&Path<'_>> for String {
    fn from(path: &Path<'_>) -> String {
        path.to_string()
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> String {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_users_write_it() {
        let root = Path::ROOT;
        let spec = root.field("spec");
        let containers = spec.field("containers");
        let first = containers.index(0);
        let labels = first.field("labels");
        assert_eq!(
            labels.key("a/b").to_string(),
            "spec.containers[0].labels[a/b]"
        );
        assert_eq!(root.index(2).to_string(), "[2]");
        assert_eq!(root.or_nil(), "<nil>");
    }
}
