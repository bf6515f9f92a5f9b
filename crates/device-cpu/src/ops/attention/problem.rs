//! One attention call as plain slices and strides, and its cut into tasks.

use std::ops::Range;

use super::turn::Columns;

/// The largest head.
pub(super) const MAX_SIZE: usize = 256;

/// What a query may see.
pub(super) enum Mask<'a> {
    /// All keys.
    None,
    /// Keys up to its own position, counted from the end.
    Causal,
    /// All, with numbers added to the scores.
    Additive {
        /// From the first number to the last.
        numbers: &'a [f32],
        /// Of batch, head, query and key.
        strides: [usize; 4],
    },
}

/// Rows of `size` packed numbers by batch, position and head.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// From the first number to the last.
    pub(super) numbers: &'a [f32],
    /// Of batch, position and head.
    pub(super) strides: [usize; 3],
}

impl<'a> Rows<'a> {
    /// One row.
    #[inline(always)]
    pub(super) fn row(&self, batch: usize, position: usize, head: usize, size: usize) -> &'a [f32] {
        let start = offset(self.strides, [batch, position, head]);
        &self.numbers[start..start + size]
    }
}

/// The output, which tasks write side by side.
pub(super) struct OutputRows {
    start: *mut f32,
    len: usize,
    strides: [usize; 3],
}

// SAFETY: the pointer leaves only through `columns`, whose callers write different rows.
unsafe impl Sync for OutputRows {}

impl OutputRows {
    /// The rows of a slice, which must stay borrowed while they are used.
    pub(super) fn new(numbers: &mut [f32], strides: [usize; 3]) -> OutputRows {
        OutputRows { start: numbers.as_mut_ptr(), len: numbers.len(), strides }
    }

    /// The rows of some queries of a task, at least one: as columns, because the task has them turned.
    pub(super) fn columns(&self, task: Task, queries: Range<usize>, size: usize) -> Columns {
        let first = offset(self.strides, [task.batch, queries.start, task.head]);
        let last = offset(self.strides, [task.batch, queries.end - 1, task.head]);
        assert!(last + size <= self.len, "rows lie inside the output");
        // SAFETY: the first row lies inside the slice, as the last does.
        let start = unsafe { self.start.add(first) };
        Columns { start, pitch: self.strides[1] }
    }
}

fn offset(strides: [usize; 3], index: [usize; 3]) -> usize {
    strides[0] * index[0] + strides[1] * index[1] + strides[2] * index[2]
}

/// One attention call.
pub(super) struct Problem<'a> {
    pub(super) q: Rows<'a>,
    pub(super) k: Rows<'a>,
    pub(super) v: Rows<'a>,
    pub(super) out: OutputRows,
    pub(super) mask: Mask<'a>,
    pub(super) scale: f32,
    /// What scores are bent to stay below.
    pub(super) soft_cap: Option<f32>,
    pub(super) batch: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) heads: usize,
    /// Heads of keys and values.
    pub(super) groups: usize,
    pub(super) size: usize,
}

/// A run of queries of one head: the unit of work.
#[derive(Clone, Copy)]
pub(super) struct Task {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) first_query: usize,
    pub(super) queries: usize,
}

/// The most queries of a task. All of them use a tile of keys once it has been packed.
const TASK_QUERIES: usize = 512;
/// The fewest queries of a task, unless there are no more.
const LEAST_QUERIES: usize = 64;
/// Tasks are made smaller until there are this many, for processors with many cores.
const ENOUGH_TASKS: usize = 64;

impl Problem<'_> {
    /// Queries per task: by the size of the problem, never by the number of threads.
    pub(super) fn task_queries(&self) -> usize {
        let mut size = TASK_QUERIES;
        let heads = self.batch * self.heads;
        while size > LEAST_QUERIES && heads * self.queries.div_ceil(size) < ENOUGH_TASKS {
            size /= 2;
        }
        size.min(self.queries)
    }

    /// Number of tasks.
    pub(super) fn task_count(&self) -> usize {
        self.batch * self.heads * self.queries.div_ceil(self.task_queries())
    }

    /// One task. Tasks of one head follow each other, so that its keys stay in the cache.
    pub(super) fn task(&self, index: usize) -> Task {
        let size = self.task_queries();
        let per_head = self.queries.div_ceil(size);
        let (head, first_query) = (index / per_head, index % per_head * size);
        let queries = size.min(self.queries - first_query);
        Task { batch: head / self.heads, head: head % self.heads, first_query, queries }
    }

    /// Number of keys that some query before `end` sees.
    pub(super) fn visible_keys(&self, end: usize) -> usize {
        match self.mask {
            Mask::Causal => (end + self.keys).saturating_sub(self.queries).min(self.keys),
            Mask::None | Mask::Additive { .. } => self.keys,
        }
    }
}
