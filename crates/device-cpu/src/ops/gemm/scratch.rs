//! Packing memory that each thread keeps, since fresh pages cost more than packing does.
//!
//! No ledger has these bytes. They are bounded instead: a thread never holds more than [`MOST_VALUES`] of each side, 32 MB
//! in all, whatever the sizes of the operation, and what else kernels allocate for a moment is no more than a vector of
//! parameters or 2 MB for each thread.

use std::cell::Cell;

/// A cache line, so that vectors never straddle two.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// The most values of one side that a thread may ask for. Kernels cut their work so that this is enough.
pub(crate) const MOST_VALUES: usize = 4 << 20;

thread_local! {
    static LEFT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    static RIGHT: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Aligned values, whatever was in them.
pub(crate) struct Scratch {
    lines: Vec<Line>,
    len: usize,
}

impl Scratch {
    /// Memory for a shared left side.
    pub(crate) fn take_left(len: usize) -> Scratch {
        Scratch::grown(LEFT.take(), len)
    }

    /// Memory for one piece's right side.
    pub(crate) fn take_right(len: usize) -> Scratch {
        Scratch::grown(RIGHT.take(), len)
    }

    /// Keeps the memory for this thread's next left side.
    pub(crate) fn give_left(self) {
        LEFT.set(self.lines);
    }

    /// Keeps the memory for this thread's next right side.
    pub(crate) fn give_right(self) {
        RIGHT.set(self.lines);
    }

    /// The values.
    pub(crate) fn values(&mut self) -> &mut [f32] {
        // SAFETY: lines are plain values without padding, and there are enough of them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }

    fn grown(mut lines: Vec<Line>, len: usize) -> Scratch {
        let wanted = len.div_ceil(16);
        if lines.len() < wanted {
            lines.resize(wanted, Line([0.0; 16]));
        }
        Scratch { lines, len }
    }
}
