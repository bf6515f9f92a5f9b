//! Where the time of a step went, block by block: computing, copying, waiting for copies.
//!
//! Marks are put into the streams as blocks are leased and copied; the devices note the times themselves, so nothing
//! waits. They are read when someone asks.

use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Event, Result, Stream};
use meta::DeviceId;

/// One step of a model, as its devices timed it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepProfile {
    /// From the first block's lease to the last block's end.
    pub seconds: f64,
    /// In order of use.
    pub blocks: Vec<BlockProfile>,
    /// Whether blocks were still on their way to where they stay, which took their part of the links.
    pub moving_in: bool,
}

/// One block's part of a step. Times are in seconds from the step's start.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockProfile {
    /// The block's number.
    pub block: usize,
    /// Where it computed.
    pub device: DeviceId,
    /// When its turn came.
    pub begin: f64,
    /// How long the device waited for its weights.
    pub stall: f64,
    /// How long it decoded them; 0 if they are not coded.
    pub decode: f64,
    /// How long it computed.
    pub compute: f64,
    /// The copy that brought its weights, if it is streamed.
    pub copy: Option<CopyProfile>,
    /// Bytes of activations that it was handed.
    pub handed_bytes: u64,
}

/// One block's copy into a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyProfile {
    /// When it began, before the step's start if it was brought in the step before.
    pub begin: f64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes that moved.
    pub bytes: u64,
}

/// The marks of one copy.
#[derive(Clone)]
pub(crate) struct CopyMarks {
    pub(crate) begin: Event,
    pub(crate) end: Event,
    pub(crate) bytes: u64,
}

/// The marks of what brought a block's weights to where it computes.
#[derive(Clone, Default)]
pub(crate) struct ArrivalMarks {
    pub(crate) copy: Option<CopyMarks>,
    pub(crate) decoding: Option<DecodingMarks>,
}

/// The marks of one decoding.
#[derive(Clone)]
pub(crate) struct DecodingMarks {
    pub(crate) begin: Event,
    pub(crate) end: Event,
}

/// The marks of one block in a step.
struct BlockMarks {
    block: usize,
    device: DeviceId,
    wanted: Event,
    ready: Event,
    done: Option<Event>,
    arrival: ArrivalMarks,
    handed_bytes: u64,
}

/// Collects the marks of steps as they pass.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Steps>);

#[derive(Default)]
struct Steps {
    current: StepMarks,
    /// The latest that ended, and the one before it: the device may still be working on the latest.
    ended: [StepMarks; 2],
}

/// The marks of a step.
#[derive(Default)]
struct StepMarks {
    blocks: Vec<BlockMarks>,
    moving_in: bool,
}

impl Recorder {
    /// A block was leased, while others were still moving in or not; blocks of a step come in order, so a smaller one begins the
    /// next step.
    pub(crate) fn lease(
        &self,
        block: usize,
        stream: &Stream,
        (wanted, moving_in): (Event, bool),
        arrival: ArrivalMarks,
    ) -> Result<()> {
        let ready = stream.record_timed()?;
        let mut steps = self.lock();
        if steps.current.blocks.last().is_some_and(|last| block <= last.block) {
            steps.end();
        }
        steps.current.moving_in |= moving_in;
        steps.current.blocks.push(BlockMarks {
            block,
            device: stream.device(),
            wanted,
            ready,
            done: None,
            arrival,
            handed_bytes: 0,
        });
        Ok(())
    }

    /// A leased block was handed so many bytes of activations.
    pub(crate) fn handed(&self, block: usize, bytes: u64) {
        let mut steps = self.lock();
        if let Some(marks) = steps.current.blocks.iter_mut().rev().find(|marks| marks.block == block) {
            marks.handed_bytes += bytes;
        }
    }

    /// A block's work has been queued.
    pub(crate) fn release(&self, block: usize, stream: &Stream) {
        // A stream that failed tells it to the next call; a profile can do without a mark.
        let Ok(done) = stream.record_timed() else { return };
        let mut steps = self.lock();
        if let Some(marks) = steps.current.blocks.iter_mut().rev().find(|marks| marks.block == block) {
            marks.done = Some(done);
        }
    }

    /// No more blocks of this step will come.
    pub(crate) fn end_step(&self) {
        self.lock().end();
    }

    /// The latest step that the devices have done.
    pub(crate) fn latest(&self) -> Option<StepProfile> {
        let steps = self.lock();
        steps.ended.iter().find_map(|step| read(step).ok().flatten())
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Steps {
    fn end(&mut self) {
        if !self.current.blocks.is_empty() {
            let [latest, before] = &mut self.ended;
            std::mem::swap(latest, before);
            *latest = std::mem::take(&mut self.current);
        }
    }
}

/// The times of a step; none before all of it is done.
fn read(step: &StepMarks) -> Result<Option<StepProfile>> {
    // Each device has its own clock. Its zero is its first block, which could not begin before the block before it,
    // on another device, had ended.
    let mut zeros: Vec<(DeviceId, &Event, f64)> = Vec::new();
    let mut blocks = Vec::with_capacity(step.blocks.len());
    let mut end = 0.0_f64;
    for marks in &step.blocks {
        let Some(done) = &marks.done else { return Ok(None) };
        let zero = match zeros.iter().find(|(device, ..)| *device == marks.device) {
            Some(zero) => *zero,
            None => {
                let zero = match zeros.first() {
                    None => (marks.device, &marks.wanted, 0.0),
                    Some((_, first, _)) => match marks.wanted.seconds_since(first)? {
                        Some(seconds) => (marks.device, &marks.wanted, seconds),
                        None => (marks.device, &marks.wanted, end),
                    },
                };
                zeros.push(zero);
                zero
            }
        };
        let since = |event: &Event| -> Result<Option<f64>> {
            Ok(event.seconds_since(zero.1)?.map(|seconds| seconds + zero.2))
        };
        let (Some(begin), Some(ready), Some(done)) =
            (since(&marks.wanted)?, since(&marks.ready)?, since(done)?)
        else {
            return Ok(None);
        };
        let decode = match &marks.arrival.decoding {
            None => 0.0,
            Some(decoding) => decoding.end.seconds_since(&decoding.begin)?.unwrap_or(0.0).max(0.0),
        };
        let copy = match &marks.arrival.copy {
            None => None,
            Some(copy) => match (since(&copy.begin)?, since(&copy.end)?) {
                (Some(begin), Some(end)) => {
                    Some(CopyProfile { begin, seconds: end - begin, bytes: copy.bytes })
                }
                _ => None,
            },
        };
        end = done;
        blocks.push(BlockProfile {
            block: marks.block,
            device: marks.device,
            begin,
            stall: (ready - begin - decode).max(0.0),
            decode,
            compute: (done - ready).max(0.0),
            copy,
            handed_bytes: marks.handed_bytes,
        });
    }
    Ok((!blocks.is_empty()).then_some(StepProfile { seconds: end, blocks, moving_in: step.moving_in }))
}
