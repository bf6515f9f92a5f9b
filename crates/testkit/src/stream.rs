//! A checkpoint's bytes in order, made in parallel: a file is cut into pieces that know how to write themselves,
//! and pieces are made batch by batch while the batch before them is consumed.

use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;

use meta::Encoding;
use rayon::prelude::*;

use crate::Procedural;
use crate::encode::Encoder;
use crate::procedural::TASK;

/// Bytes made at a time when streaming.
const BATCH_BYTES: usize = 8 << 20;
/// Bytes that are looked at where a piece of a written file begins and ends.
const END_BYTES: usize = 256;

/// A run of consecutive bytes of a file.
pub(crate) enum Piece<'a> {
    /// Bytes that are at hand.
    Copy(&'a [u8]),
    /// Padding.
    Zeros(usize),
    /// Procedural values from `start` on.
    Values { rule: Procedural, start: u64, encoder: Encoder, bytes: usize },
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Piece::Copy(bytes) => bytes.len(),
            Piece::Zeros(count) => *count,
            Piece::Values { bytes, .. } => *bytes,
        }
    }

    /// The first bytes of the piece, and the last ones with the place where they begin: about [`END_BYTES`] each, as
    /// whole blocks.
    fn ends(&self) -> [(usize, Vec<u8>); 2] {
        match self {
            Piece::Copy(bytes) => [(0, bytes.to_vec()), (0, Vec::new())],
            Piece::Zeros(count) => [(0, vec![0; *count]), (0, Vec::new())],
            Piece::Values { rule, start, encoder, bytes } => {
                let length = (END_BYTES.next_multiple_of(encoder.block_bytes)).min(*bytes);
                [0, bytes - length].map(|at| {
                    let mut end = vec![0; length];
                    let skipped = at / encoder.block_bytes * encoder.block_len;
                    rule.fill_encoded(start + skipped as u64, *encoder, &mut end);
                    (at, end)
                })
            }
        }
    }

    fn write(&self, out: &mut [u8]) {
        match self {
            Piece::Copy(bytes) => out.copy_from_slice(bytes),
            Piece::Zeros(_) => out.fill(0),
            Piece::Values { rule, start, encoder, .. } => rule.fill_encoded(*start, *encoder, out),
        }
    }
}

/// The pieces of a tensor of `count` procedural values.
pub(crate) fn values<'a>(
    rule: Procedural,
    encoding: Encoding,
    encoder: Encoder,
    count: u64,
) -> impl Iterator<Item = Piece<'a>> {
    (0..count).step_by(TASK).map(move |start| {
        let values = (count - start).min(TASK as u64) as usize;
        Piece::Values { rule, start, encoder, bytes: values / encoding.block_len() * encoding.block_bytes() }
    })
}

/// All pieces in one vector.
pub(crate) fn collect(pieces: &[Piece<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    fill(pieces, &mut bytes);
    bytes
}

/// Sends all pieces to `sink`, in order, without holding more than two batches.
pub(crate) fn send(pieces: &[Piece<'_>], sink: &mut (impl Write + Send)) -> std::io::Result<()> {
    let mut ready = Vec::new();
    let mut next = Vec::new();
    for batch in batches(pieces) {
        let (sent, ()) = rayon::join(|| sink.write_all(&ready), || fill(&pieces[batch], &mut next));
        sent?;
        std::mem::swap(&mut ready, &mut next);
    }
    sink.write_all(&ready)
}

/// Whether a file has the bytes of all pieces at the pieces' ends.
pub(crate) fn ends_match(pieces: &[Piece<'_>], file: &mut (impl Read + Seek)) -> std::io::Result<bool> {
    let mut start = 0;
    for piece in pieces {
        for (at, wanted) in piece.ends() {
            let mut found = vec![0; wanted.len()];
            file.seek(SeekFrom::Start((start + at) as u64))?;
            file.read_exact(&mut found)?;
            if found != wanted {
                return Ok(false);
            }
        }
        start += piece.len();
    }
    Ok(true)
}

/// Consecutive ranges of pieces that have about [`BATCH_BYTES`] bytes each.
fn batches(pieces: &[Piece<'_>]) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (i, piece) in pieces.iter().enumerate() {
        bytes += piece.len();
        if bytes >= BATCH_BYTES || i + 1 == pieces.len() {
            batches.push(start..i + 1);
            (start, bytes) = (i + 1, 0);
        }
    }
    batches
}

/// Replaces `out` by the bytes of `pieces`.
fn fill(pieces: &[Piece<'_>], out: &mut Vec<u8>) {
    out.resize(pieces.iter().map(Piece::len).sum(), 0);
    let mut rest = out.as_mut_slice();
    let mut parts = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (part, after) = rest.split_at_mut(piece.len());
        parts.push((piece, part));
        rest = after;
    }
    parts.into_par_iter().for_each(|(piece, part)| piece.write(part));
}
