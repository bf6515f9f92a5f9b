//! What travels along links: constants, and objects that only the nodes understand.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::coercion::repr;
use crate::literal::Literal;

/// The name of a node in a prompt. Any text is valid and is echoed as it came.
pub type NodeId = Arc<str>;

/// A value that a node makes and another one takes: a picture, a model, a schedule.
pub trait Object: Any + Send + Sync + fmt::Debug {
    /// A short line for people: what it is, and its size. It is shown when a node fails.
    fn describe(&self) -> String;

    /// Whether it still stands for what it was made of. One that does not, such as a model whose file has changed since,
    /// is made anew by the next prompt instead of being taken from the cache.
    fn is_current(&self) -> bool {
        true
    }
}

/// One value on a link.
#[derive(Clone, Debug)]
pub enum Value {
    /// A constant.
    Literal(Literal),
    /// Something in memory.
    Object(Arc<dyn Object>),
    /// Nothing downstream of here runs; with a message, the user is told once.
    Blocker(Option<Arc<str>>),
}

impl Value {
    /// An object as a value.
    pub fn object(object: impl Object) -> Value {
        Value::Object(Arc::new(object))
    }

    /// The object of type `T`, if it is one.
    #[must_use]
    pub fn downcast<T: Object>(&self) -> Option<Arc<T>> {
        match self {
            Value::Object(object) => {
                let object: Arc<dyn Any + Send + Sync> = Arc::clone(object) as _;
                object.downcast().ok()
            }
            _ => None,
        }
    }

    /// The constant, if it is one.
    #[must_use]
    pub fn literal(&self) -> Option<&Literal> {
        match self {
            Value::Literal(literal) => Some(literal),
            _ => None,
        }
    }

    /// Whether this is Python's `None`.
    #[must_use]
    pub fn is_none(&self) -> bool {
        matches!(self, Value::Literal(Literal::Null))
    }

    /// Whether it still stands for what it was made of.
    #[must_use]
    pub fn is_current(&self) -> bool {
        match self {
            Value::Object(object) => object.is_current(),
            Value::Literal(_) | Value::Blocker(_) => true,
        }
    }

    /// A short line for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Value::Literal(literal) => repr(literal),
            Value::Object(object) => object.describe(),
            Value::Blocker(_) => "blocked".to_owned(),
        }
    }
}

impl<T: Into<Literal>> From<T> for Value {
    fn from(value: T) -> Value {
        Value::Literal(value.into())
    }
}

/// An output of a node: `["7", 0]` in a prompt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link {
    /// The node that gives it.
    pub node: NodeId,
    /// Which of its outputs.
    pub slot: usize,
}

impl Link {
    /// A link to an output of a node.
    pub fn new(node: impl Into<NodeId>, slot: usize) -> Link {
        Link { node: node.into(), slot }
    }
}
