//! The node classes that there are, by name.

use std::sync::Arc;

use indexmap::IndexMap;

use crate::class::NodeClass;

/// All node classes, in the order in which they are listed.
#[derive(Default, Clone)]
pub struct Catalogue {
    classes: IndexMap<String, Arc<dyn NodeClass>>,
    instead: Option<Instead>,
}

/// What to do about a class that is not there, by its name, if anything is known of it.
type Instead = fn(&str) -> Option<&'static str>;

impl Catalogue {
    /// Adds a class under the name in its schema; a later one of the same name replaces it.
    pub fn add(&mut self, class: impl NodeClass + 'static) {
        self.add_shared(Arc::new(class));
    }

    /// Adds a class that others hold, too.
    pub fn add_shared(&mut self, class: Arc<dyn NodeClass>) {
        self.classes.insert(class.schema().class, class);
    }

    /// Says what to do about classes that are not there.
    pub fn explain_absent(&mut self, instead: Instead) {
        self.instead = Some(instead);
    }

    /// What to do about a class that is not there.
    #[must_use]
    pub fn instead_of(&self, name: &str) -> Option<&'static str> {
        self.instead.and_then(|instead| instead(name))
    }

    /// The class of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn NodeClass>> {
        self.classes.get(name)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn NodeClass>)> {
        self.classes.iter().map(|(name, class)| (name.as_str(), class))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }
}
