//! Runs one task: packs its queries, takes the keys tile by tile, writes its rows of the output.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::Next;
use super::panel::{Panel, Tile, accumulate, exponentiate, score};
use super::problem::{MAX_SIZE, Mask, Problem, Task};
use super::turn::{Columns, turn};
use super::vector::Vector;

/// Keys per tile: the scores of a panel and the values of a tile stay in the first two caches.
const TILE_KEYS: usize = 128;

/// A cache line, so that vectors of the widest kind are aligned.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// Numbers that start at a cache line.
struct Aligned(Vec<Line>);

impl Aligned {
    fn new(len: usize) -> Aligned {
        Aligned(vec![Line([0.0; 16]); len.div_ceil(16)])
    }

    fn numbers(&mut self) -> &mut [f32] {
        // SAFETY: a line is sixteen numbers and nothing else.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * 16) }
    }
}

/// The working memory of a thread, laid out for `ROWS` and a panel `width` queries wide.
pub(super) struct Scratch {
    queries: Aligned,
    outputs: Aligned,
    largest: Aligned,
    sums: Aligned,
    scores: Aligned,
    keys: Aligned,
    values: Aligned,
    mask: Aligned,
}

impl Scratch {
    fn new<const ROWS: usize>(problem: &Problem<'_>, width: usize) -> Scratch {
        let lanes = problem.task_queries().next_multiple_of(width);
        let tile = full_tile::<ROWS>(problem);
        let padded = problem.size.next_multiple_of(ROWS);
        let mask = if matches!(problem.mask, Mask::Additive { .. }) { tile * width } else { 0 };
        Scratch {
            queries: Aligned::new(problem.size * lanes),
            outputs: Aligned::new(padded * lanes),
            largest: Aligned::new(lanes),
            sums: Aligned::new(lanes),
            scores: Aligned::new(tile * width),
            keys: Aligned::new(tile * problem.size),
            values: Aligned::new(values_pitch::<ROWS>(problem) * padded),
            mask: Aligned::new(mask),
        }
    }
}

/// Keys that a tile has room for.
fn full_tile<const ROWS: usize>(problem: &Problem<'_>) -> usize {
    problem.keys.min(TILE_KEYS).next_multiple_of(ROWS)
}

/// Keys from one group of numbers of the values to the next. Two more than needed, so that the groups, which
/// are written in turn, do not fall on the same lines of the cache.
fn values_pitch<const ROWS: usize>(problem: &Problem<'_>) -> usize {
    full_tile::<ROWS>(problem) + 2
}

/// A worker: takes tasks until there are none.
///
/// # Safety
/// The processor has the vector's instruction set, and `next` gives each task to one worker only.
#[inline(always)]
pub(super) unsafe fn work<V: Vector, const ROWS: usize, const WIDTH: usize>(
    problem: &Problem<'_>,
    next: &Next<'_>,
) {
    let mut scratch = Scratch::new::<ROWS>(problem, WIDTH * V::LANES);
    while let Some(index) = next.task() {
        // SAFETY: the caller vouches for the instruction set and the tasks.
        unsafe { run::<V, ROWS, WIDTH>(problem, problem.task(index), &mut scratch, next) };
    }
}

/// # Safety
/// The processor has the vector's instruction set, and the task's rows of the output are only this one's.
#[inline(always)]
unsafe fn run<V: Vector, const ROWS: usize, const WIDTH: usize>(
    problem: &Problem<'_>,
    task: Task,
    scratch: &mut Scratch,
    next: &Next<'_>,
) {
    scratch.outputs.numbers().fill(0.0);
    scratch.largest.numbers().fill(f32::NEG_INFINITY);
    scratch.sums.numbers().fill(0.0);
    for span in spans(task, V::LANES, WIDTH) {
        // SAFETY: the caller vouches for the instruction set.
        unsafe { pack_queries::<V>(problem, task, span, scratch) };
    }
    let visible = problem.visible_keys(task.first_query + task.queries);
    for first_key in (0..visible).step_by(TILE_KEYS) {
        if next.is_cancelled() {
            return;
        }
        let keys = first_key..visible.min(first_key + TILE_KEYS);
        // SAFETY: the caller vouches for the instruction set.
        unsafe { pack_tile::<V, ROWS>(problem, task, keys.clone(), scratch) };
        for span in spans(task, V::LANES, WIDTH) {
            let visible = problem.visible_keys(task.first_query + span.first + span.queries);
            let keys = first_key..keys.end.min(visible);
            if keys.is_empty() {
                continue;
            }
            // SAFETY: the caller vouches for the instruction set.
            unsafe {
                if span.width == V::LANES {
                    attend::<V, ROWS, 1>(problem, task, span, keys, scratch);
                } else {
                    attend::<V, ROWS, WIDTH>(problem, task, span, keys, scratch);
                }
            }
        }
    }
    for span in spans(task, V::LANES, WIDTH) {
        // SAFETY: the caller vouches for the rows and the instruction set.
        unsafe { write_output::<V, ROWS>(problem, task, span, scratch) };
    }
}

/// The queries of a task that share a panel.
#[derive(Clone, Copy)]
struct Span {
    /// The first, counted in the task; the panel's memory starts with it, too.
    first: usize,
    queries: usize,
    /// Places in the panel, at least as many.
    width: usize,
}

/// Cuts a task into panels; the last is one vector wide if that is enough.
#[inline(always)]
fn spans(task: Task, lanes: usize, vectors: usize) -> impl Iterator<Item = Span> {
    let width = lanes * vectors;
    (0..task.queries).step_by(width).map(move |first| {
        let queries = width.min(task.queries - first);
        Span { first, queries, width: if queries <= lanes { lanes } else { width } }
    })
}

/// # Safety
/// The processor has the vector's instruction set.
#[inline(always)]
unsafe fn pack_queries<V: Vector>(problem: &Problem<'_>, task: Task, span: Span, scratch: &mut Scratch) {
    let panel = &mut scratch.queries.numbers()[span.first * problem.size..][..problem.size * span.width];
    if span.queries < span.width {
        panel.fill(0.0);
    }
    let first = task.first_query + span.first;
    let row = |r: usize| problem.q.row(task.batch, first + r, task.head, problem.size).as_ptr();
    let factors = &[problem.scale * LOG2_E; MAX_SIZE][..problem.size];
    let target = Columns { start: panel.as_mut_ptr(), pitch: span.width };
    // SAFETY: the panel has `width` places for each number of a row, and the rows are that long.
    unsafe { turn::<V>(row, span.queries, factors, target) };
}

/// Packs keys in groups of `ROWS` side by side, and values in groups of `ROWS` numbers of all of them.
///
/// # Safety
/// The processor has the vector's instruction set.
#[inline(always)]
unsafe fn pack_tile<V: Vector, const ROWS: usize>(
    problem: &Problem<'_>,
    task: Task,
    keys: Range<usize>,
    scratch: &mut Scratch,
) {
    let (size, pitch) = (problem.size, values_pitch::<ROWS>(problem));
    let head = task.head / (problem.heads / problem.groups);
    let groups = scratch.keys.numbers().chunks_exact_mut(ROWS * size);
    for (first, group) in keys.clone().step_by(ROWS).zip(groups) {
        let row = |r: usize| problem.k.row(task.batch, first + r, head, size).as_ptr();
        let target = Columns { start: group.as_mut_ptr(), pitch: ROWS };
        // SAFETY: the group has `ROWS` places for each number of a row, and the rows are that long.
        unsafe { turn::<V>(row, ROWS.min(keys.end - first), &[1.0; MAX_SIZE][..size], target) };
    }
    let groups = scratch.values.numbers().as_chunks_mut::<ROWS>().0;
    for (i, key) in keys.enumerate() {
        let (whole, rest) = problem.v.row(task.batch, key, head, size).as_chunks::<ROWS>();
        for (group, numbers) in whole.iter().enumerate() {
            groups[group * pitch + i] = *numbers;
        }
        if !rest.is_empty() {
            groups[whole.len() * pitch + i][..rest.len()].copy_from_slice(rest);
        }
    }
}

/// Takes a tile's keys into account in a panel.
///
/// # Safety
/// The processor has the vector's instruction set.
#[inline(always)]
unsafe fn attend<V: Vector, const ROWS: usize, const WIDTH: usize>(
    problem: &Problem<'_>,
    task: Task,
    span: Span,
    keys: Range<usize>,
    scratch: &mut Scratch,
) {
    let (size, padded_size) = (problem.size, problem.size.next_multiple_of(ROWS));
    let tile = Tile {
        keys: scratch.keys.numbers().as_ptr(),
        values: scratch.values.numbers().as_ptr(),
        size,
        values_pitch: values_pitch::<ROWS>(problem),
    };
    let panel = Panel {
        queries: scratch.queries.numbers()[span.first * size..].as_ptr(),
        outputs: scratch.outputs.numbers()[span.first * padded_size..].as_mut_ptr(),
        largest: scratch.largest.numbers()[span.first..].as_mut_ptr(),
        sums: scratch.sums.numbers()[span.first..].as_mut_ptr(),
        scores: scratch.scores.numbers().as_mut_ptr(),
    };
    // SAFETY: the scratch is laid out for tiles and panels of these sizes, and the caller vouches for the
    // instruction set. The masks are written between uses of the panel's pointers.
    unsafe {
        score::<V, ROWS, WIDTH>(&panel, &tile, keys.len());
        let scores = std::slice::from_raw_parts_mut(panel.scores, keys.len() * span.width);
        if let Some(cap) = problem.soft_cap {
            bend(scores, cap * LOG2_E);
        }
        match problem.mask {
            Mask::None => {}
            Mask::Causal => hide_later_keys(problem, task.first_query + span.first, keys.clone(), scores),
            Mask::Additive { numbers, strides } => {
                let at = strides[0] * task.batch
                    + strides[1] * task.head
                    + strides[2] * (task.first_query + span.first)
                    + strides[3] * keys.start;
                let numbers = MaskNumbers { numbers: &numbers[at..], query: strides[2], key: strides[3] };
                numbers.add_to(scores, span, scratch.mask.numbers());
            }
        }
        let factors = exponentiate::<V, WIDTH>(&panel, keys.len());
        accumulate::<V, ROWS, WIDTH>(&panel, &tile, keys.len(), factors);
    }
}

/// Bends scores to stay below a cap, which is in their unit.
#[inline(always)]
fn bend(scores: &mut [f32], cap: f32) {
    scores.iter_mut().for_each(|score| *score = cap * (*score / cap).tanh());
}

/// Hides from each query the keys beyond its own position, counted from the end.
#[inline(always)]
fn hide_later_keys(problem: &Problem<'_>, first_query: usize, keys: Range<usize>, scores: &mut [f32]) {
    let width = scores.len() / keys.len();
    for (key, scores) in keys.zip(scores.chunks_exact_mut(width)) {
        let hidden = (key + problem.queries).saturating_sub(problem.keys + first_query);
        scores[..hidden.min(width)].fill(f32::NEG_INFINITY);
    }
}

/// An additive mask from the first query and key of a part on, with the strides of both.
struct MaskNumbers<'a> {
    numbers: &'a [f32],
    query: usize,
    key: usize,
}

impl MaskNumbers<'_> {
    /// Adds the mask to scores, which stand with their queries side by side.
    #[inline(always)]
    fn add_to(&self, scores: &mut [f32], span: Span, turned: &mut [f32]) {
        if self.query == 0 {
            for (key, scores) in scores.chunks_exact_mut(span.width).enumerate() {
                let number = in_base_2(self.numbers[key * self.key]);
                scores.iter_mut().for_each(|score| *score += number);
            }
            return;
        }
        let turned = &mut turned[..scores.len()];
        for query in 0..span.queries {
            let numbers = &self.numbers[query * self.query..];
            for (key, target) in turned[query..].iter_mut().step_by(span.width).enumerate() {
                *target = numbers[key * self.key];
            }
        }
        scores.iter_mut().zip(turned).for_each(|(score, number)| *score += in_base_2(*number));
    }
}

/// A number of a mask in the unit of the scores. Only minus infinity hides a key, so the lowest numbers,
/// which other programs hide keys with, must not become it: a query with nothing else sees them all.
#[inline(always)]
fn in_base_2(number: f32) -> f32 {
    let scaled = number * LOG2_E;
    if scaled == f32::NEG_INFINITY && number != f32::NEG_INFINITY { f32::MIN } else { scaled }
}

/// Divides the outputs of a panel by their sums and writes them. A query that has seen nothing gets zeros.
///
/// # Safety
/// The task's rows of the output are only this one's, and the processor has the vector's instruction set.
#[inline(always)]
unsafe fn write_output<V: Vector, const ROWS: usize>(
    problem: &Problem<'_>,
    task: Task,
    span: Span,
    scratch: &mut Scratch,
) {
    let padded = problem.size.next_multiple_of(ROWS);
    let sums = &mut scratch.sums.numbers()[span.first..][..span.queries];
    for sum in sums.iter_mut() {
        *sum = if *sum == 0.0 { 0.0 } else { 1.0 / *sum };
    }
    let panel = &scratch.outputs.numbers()[span.first * padded..][..problem.size * span.width];
    let row = |r: usize| panel[r * span.width..].as_ptr();
    let first = task.first_query + span.first;
    let target = problem.out.columns(task, first..first + span.queries, problem.size);
    // SAFETY: the rows of the panel are `width` long, and the caller has the rows of the output alone.
    unsafe { turn::<V>(row, problem.size, sums, target) };
}
