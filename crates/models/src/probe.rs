//! Probes: a look at what the modules of a model compute, by the names of their weights. Comparing two
//! devices, or one with a reference, needs more than the end result.

use std::fmt;

use tensor::Tensor;

use crate::Result;

/// What is called with the name and the result of a module.
type See<'a> = dyn FnMut(&str, &Tensor) + 'a;

/// Is shown the results of modules while a model computes, or nothing.
#[derive(Default)]
pub struct Probe<'a> {
    see: Option<&'a mut See<'a>>,
}

impl<'a> Probe<'a> {
    /// A probe that sees nothing and costs nothing.
    pub fn none() -> Probe<'a> {
        Probe::default()
    }

    /// Calls `see` with the name and the result of each module.
    pub fn new(see: &'a mut See<'a>) -> Probe<'a> {
        Probe { see: Some(see) }
    }

    /// Shows what a module would give whose result is only a step inside a larger operation.
    pub(crate) fn show_step(
        &mut self,
        name: fmt::Arguments<'_>,
        value: impl FnOnce() -> Result<Tensor>,
    ) -> Result<()> {
        if let Some(see) = &mut self.see {
            see(&name.to_string(), &value()?);
        }
        Ok(())
    }

    /// Shows a result. The name is only written where somebody looks.
    pub(crate) fn show(&mut self, name: fmt::Arguments<'_>, value: &Tensor) {
        if let Some(see) = &mut self.see {
            see(&name.to_string(), value);
        }
    }
}
