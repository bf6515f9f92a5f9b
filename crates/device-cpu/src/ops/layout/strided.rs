//! Moves of elements between strides, whatever their type: only their size counts.

use std::cmp::Reverse;
use std::marker::PhantomData;
use std::ops::Range;

use device::{Error, Operand, Result};
use rayon::prelude::*;

use crate::ops::elementwise::traversal::{TASK, Traversal, in_tasks};
use crate::stop::Tasks;

/// Bytes that one task copies.
const CHUNK: usize = 256 * 1024;

/// Side of the square in which a permutation is done: both sides of it stay in the nearest cache.
const TILE: usize = 32;

/// Side of the square of such squares that one thread does: the pages of it stay known to the processor.
const SPAN: usize = 8 * TILE;

/// The bytes of an output, which several threads write in distinct places.
pub(crate) struct Place<'a> {
    start: *mut u8,
    len: usize,
    _output: PhantomData<&'a Operand>,
}

// SAFETY: `part` asks its callers to write distinct places.
unsafe impl Sync for Place<'_> {}

impl<'a> Place<'a> {
    /// Of the output of a call whose access is held.
    pub(crate) fn of(out: &'a Operand) -> Result<Place<'a>> {
        let buffer = out.buffer();
        let base = buffer.memory().host_pointer().ok_or_else(|| Error::Device {
            device: buffer.device(),
            action: "writing a copy".into(),
            reason: "the memory is not addressable by the host".into(),
        })?;
        // SAFETY: an operand's offset lies inside its buffer.
        let start = unsafe { base.as_ptr().add(out.offset()) };
        Ok(Place { start, len: out.extent(), _output: PhantomData })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Part of it; panics if it reaches outside.
    ///
    /// # Safety
    /// While the part is in use, no other part may overlap it.
    #[allow(clippy::mut_from_ref, reason = "the caller promises that parts are apart")]
    pub(crate) unsafe fn part(&self, at: usize, len: usize) -> &mut [u8] {
        assert!(at <= self.len && len <= self.len - at, "{len} bytes at {at} of {}", self.len);
        // SAFETY: inside the output, as just checked; the caller keeps other parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// Writes one element, which must be inside.
    ///
    /// # Safety
    /// The index must be that of one of the output's elements, and no other thread may use its bytes.
    #[inline(always)]
    unsafe fn put<T: Copy>(&self, index: usize, value: T) {
        debug_assert!((index + 1) * size_of::<T>() <= self.len, "element {index} of {} bytes", self.len);
        // SAFETY: inside the output, as the caller promises; no alignment is asked for.
        unsafe { self.start.cast::<T>().add(index).write_unaligned(value) };
    }

    /// Writes neighbours; panics if they reach outside.
    ///
    /// # Safety
    /// As for `put`.
    #[inline(always)]
    unsafe fn put_packed<T: Copy>(&self, index: usize, values: &[T]) {
        // SAFETY: as the caller promises.
        let target = unsafe { self.part(index * size_of::<T>(), size_of_val(values)) };
        // SAFETY: as many bytes as `values` has; `T` is an unsigned integer, all of whose bytes are set.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), target.as_mut_ptr(), target.len()) };
    }
}

/// Copies bytes that stand one after the other on both sides.
pub(super) fn copy_packed(source: &[u8], target: &Place<'_>) {
    let copy = |(i, source): (usize, &[u8])| {
        // SAFETY: chunks are distinct parts of the output.
        unsafe { target.part(i * CHUNK, source.len()) }.copy_from_slice(source);
    };
    if source.len() <= CHUNK {
        copy((0, source));
    } else {
        let job = Tasks::of_this_job();
        source.par_chunks(CHUNK).enumerate().filter(|_| !job.is_cancelled()).for_each(copy);
    }
}

/// Copies elements of one type between any strides.
pub(super) fn copy_elements(x: &Operand, out: &Operand, source: &[u8], target: &Place<'_>) {
    match out.encoding().block_bytes() {
        1 => Move::<u8>::new(x, out, source, target).run(),
        2 => Move::<u16>::new(x, out, source, target).run(),
        4 => Move::<u32>::new(x, out, source, target).run(),
        _ => Move::<u64>::new(x, out, source, target).run(),
    }
}

/// One copy. `T` stands for any type of its size.
struct Move<'a, T> {
    source: &'a [u8],
    target: &'a Place<'a>,
    /// All dimensions but those of the square: operand 0 is the output, operand 1 the input.
    outer: Traversal,
    /// The dimension that is packed in the output.
    across: Side,
    /// The dimension that is packed in the input; of size 1 where that is the same.
    down: Side,
    element: PhantomData<fn(T)>,
}

/// One dimension.
#[derive(Clone, Copy)]
struct Side {
    len: usize,
    out_stride: usize,
    stride: usize,
}

impl<'a, T: Copy> Move<'a, T> {
    fn new(x: &Operand, out: &Operand, source: &'a [u8], target: &'a Place<'a>) -> Move<'a, T> {
        let (dims, to, from) = (out.dims(), out.strides(), x.strides());
        let mut order: Vec<usize> = (0..dims.len()).filter(|&i| dims[i] != 1).collect();
        order.sort_by_key(|&i| Reverse(to[i]));
        let side = |i: usize| Side { len: dims[i], out_stride: to[i], stride: from[i] };
        let across = order.pop();
        let mut down = None;
        if let Some(across) = across {
            // A dimension of the input with smaller steps than the output's rows have there.
            let nearest = (0..order.len()).filter(|&k| from[order[k]] > 0).min_by_key(|&k| from[order[k]]);
            down = nearest.filter(|&k| from[order[k]] < from[across]).map(|k| order.remove(k));
        }
        let one = Side { len: 1, out_stride: 0, stride: 0 };
        Move {
            source,
            target,
            outer: Traversal::in_order(dims, &[to, from], &order),
            across: across.map_or(one, side),
            down: down.map_or(one, side),
            element: PhantomData,
        }
    }

    fn run(&self) {
        let (height, width) = if self.down.len == 1 { (1, TASK) } else { (SPAN, SPAN) };
        let strips = self.down.len.div_ceil(height);
        let columns = self.across.len.div_ceil(width);
        let values = self.down.len.min(height) * self.across.len.min(width);
        in_tasks(self.outer.count() * strips * columns, values, |range| {
            for piece in range {
                let (top, left) = (piece / columns % strips * height, piece % columns * width);
                let down = top..self.down.len.min(top + height);
                self.rectangle(piece / columns / strips, down, left..self.across.len.min(left + width));
            }
        });
    }

    /// A rectangle of both sides.
    fn rectangle(&self, outer: usize, down: Range<usize>, across: Range<usize>) {
        let to = self.outer.position(0, outer)
            + down.start * self.down.out_stride
            + across.start * self.across.out_stride;
        let from =
            self.outer.position(1, outer) + down.start * self.down.stride + across.start * self.across.stride;
        if self.down.len > 1 {
            for j in (0..down.len()).step_by(TILE) {
                for i in (0..across.len()).step_by(TILE) {
                    let from = from + j * self.down.stride + i * self.across.stride;
                    let to = to + j * self.down.out_stride + i * self.across.out_stride;
                    self.turn(from, to, (down.len() - j).min(TILE), (across.len() - i).min(TILE));
                }
            }
            return;
        }
        let (n, size) = (across.len(), size_of::<T>());
        if self.across.out_stride == 1 && self.across.stride == 1 {
            // SAFETY: rows of an output that does not repeat are distinct parts of it.
            let target = unsafe { self.target.part(to * size, n * size) };
            target.copy_from_slice(&self.source[from * size..(from + n) * size]);
            return;
        }
        for i in 0..n {
            let value = self.get(from + i * self.across.stride);
            // SAFETY: as above.
            unsafe { self.target.put(to + i * self.across.out_stride, value) };
        }
    }

    /// A tile that changes its direction. It passes through a packed square: steps of a power of two
    /// would put all lines of the tile into the same few places of a cache.
    fn turn(&self, from: usize, to: usize, down: usize, across: usize) {
        let mut square = [[self.get(from); TILE]; TILE];
        for (i, line) in square.iter_mut().take(across).enumerate() {
            let from = from + i * self.across.stride;
            if self.down.stride == 1 {
                self.get_packed(from, &mut line[..down]);
            } else {
                line.iter_mut()
                    .take(down)
                    .enumerate()
                    .for_each(|(j, v)| *v = self.get(from + j * self.down.stride));
            }
        }
        let column = |j: usize| -> [T; TILE] { std::array::from_fn(|i| square[i][j]) };
        for j in 0..down {
            let (to, line) = (to + j * self.down.out_stride, column(j));
            if self.across.out_stride == 1 {
                // SAFETY: tiles of an output that does not repeat are distinct parts of it.
                unsafe { self.target.put_packed(to, &line[..across]) };
                continue;
            }
            for (i, value) in line.into_iter().take(across).enumerate() {
                // SAFETY: as above.
                unsafe { self.target.put(to + i * self.across.out_stride, value) };
            }
        }
    }

    /// Neighbours in the input.
    #[inline(always)]
    fn get_packed(&self, index: usize, out: &mut [T]) {
        let (at, len) = (index * size_of::<T>(), size_of_val(out));
        let source = &self.source[at..at + len];
        // SAFETY: as many bytes as `out` has, which any bits may fill; it is no part of the input.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), out.as_mut_ptr().cast(), len) };
    }

    /// One element of the input.
    #[inline(always)]
    fn get(&self, index: usize) -> T {
        debug_assert!((index + 1) * size_of::<T>() <= self.source.len(), "element {index}");
        // SAFETY: indices come from the operand's own dimensions and strides, whose extent the bytes
        // are; any bits are a value of the unsigned integers that `T` is, and no alignment is asked for.
        unsafe { self.source.as_ptr().cast::<T>().add(index).read_unaligned() }
    }
}
