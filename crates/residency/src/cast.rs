//! Weights that devices keep in another type than their file has. They are cast once, on their way: on the device, where
//! a block stays there; on the host, with all its cores, where it is streamed from.

use checkpoint::EntryBytes;
use device::op::Copy;
use device::{Buffer, Device, Operand, Result, Stream};
use meta::Encoding;
use tensor::Lane;

use crate::host::over;
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};

/// The most bytes of a file that wait on a device to be cast there: enough for the link, small beside a model.
const CAST_BYTES: usize = 256 << 20;
/// Where weights may start among the bytes that wait.
const ALIGN: usize = 16;

/// Bytes that casting a block on a device takes for a moment.
pub(crate) fn waiting_bytes(manifest: &Manifest, block: usize) -> usize {
    let cast = manifest.weights_of(block).iter().filter(|spec| spec.is_cast());
    cast.map(|spec| spec.bytes.len()).sum::<usize>().min(CAST_BYTES)
}

/// Queues the copy of a block to a device: what is cast waits in `waiting`, some of it at a time.
pub(crate) fn copy_block(
    stream: &Stream,
    specs: &[WeightSpec],
    layout: &BlockLayout,
    waiting: &Buffer,
    target: &Buffer,
) -> Result<()> {
    for run in runs(specs, layout, CAST_BYTES) {
        let source = over(&run.bytes);
        stream.copy(&waiting.span(0..source.len())?, &source.whole())?;
        for part in &run.parts {
            let x = Operand::new(waiting.clone(), part.stored, [part.count], part.from)?;
            let out = Operand::new(target.clone(), part.kept, [part.count], part.to)?;
            stream.launch(&Copy { x, out }.into())?;
        }
    }
    uncast(specs, layout, |offset, bytes| {
        let source = over(bytes);
        stream.copy(&target.span(offset..offset + source.len())?, &source.whole())
    })
}

/// Fills a block's memory on the host.
pub(crate) fn fill_block(
    host: &Device,
    specs: &[WeightSpec],
    layout: &BlockLayout,
    target: &Buffer,
) -> Result<()> {
    let stream = host.compute_stream()?;
    for (index, spec) in specs.iter().enumerate().filter(|(_, spec)| spec.is_cast()) {
        let x = Operand::new(over(&spec.bytes), spec.encoding, spec.shape, 0)?;
        let out = Operand::new(target.clone(), spec.kept_as, spec.shape, layout.offset(index))?;
        stream.launch(&Copy { x, out }.into())?;
    }
    uncast(specs, layout, |offset, bytes| {
        stream.write(&target.span(offset..offset + bytes.len())?, bytes.as_ref())
    })
}

/// Writes a weight of the file to a place on the lane's device, as it is kept.
pub(crate) fn write_weight(lane: &Lane, spec: &WeightSpec, target: &Operand) -> Result<()> {
    if !spec.is_cast() {
        return lane.stream().write(&target.span(), spec.bytes.as_ref());
    }
    let waiting = lane.device().upload(spec.bytes.as_ref())?;
    let x = Operand::new(waiting, spec.encoding, spec.shape, 0)?;
    lane.stream().launch(&Copy { x, out: target.clone() }.into())
}

/// Calls `visit` with the offset and the bytes of everything in a block that is not cast.
fn uncast(
    specs: &[WeightSpec],
    layout: &BlockLayout,
    mut visit: impl FnMut(usize, &EntryBytes) -> Result<()>,
) -> Result<()> {
    for (index, spec) in specs.iter().enumerate() {
        if !spec.is_cast() {
            visit(layout.offset(index), &spec.bytes)?;
        }
        for (offset, companion) in layout.companion_offsets(index).into_iter().zip(spec.companions.all()) {
            if let (Some(offset), Some(companion)) = (offset, companion) {
                visit(offset, &companion.bytes)?;
            }
        }
    }
    Ok(())
}

/// A part of a file that is brought to a device at once.
struct Run {
    bytes: EntryBytes,
    parts: Vec<Part>,
}

/// Values of one weight in a run.
struct Part {
    /// Offset in the run.
    from: usize,
    /// Offset in the block.
    to: usize,
    count: usize,
    stored: Encoding,
    kept: Encoding,
}

/// The weights of a block that are cast, in the order of the file, joined where they follow each other and cut so that no
/// run has more bytes than `limit`, a multiple of every element's size.
fn runs(specs: &[WeightSpec], layout: &BlockLayout, limit: usize) -> Vec<Run> {
    let mut cast: Vec<(usize, &WeightSpec)> =
        specs.iter().enumerate().filter(|(_, spec)| spec.is_cast()).collect();
    cast.sort_by_key(|(_, spec)| spec.bytes.place().start);
    let mut runs: Vec<Run> = Vec::new();
    for (index, spec) in cast {
        let (stored, kept) = (spec.encoding.block_bytes(), spec.kept_as.block_bytes());
        for start in (0..spec.bytes.len()).step_by(limit) {
            let bytes = spec.bytes.slice(start..spec.bytes.len().min(start + limit));
            let to = layout.offset(index) + start / stored * kept;
            let part = |from| Part {
                from,
                to,
                count: bytes.len() / stored,
                stored: spec.encoding,
                kept: spec.kept_as,
            };
            if let Some(run) = runs.last_mut()
                && run.bytes.len() + bytes.len() <= limit
                && run.bytes.len().is_multiple_of(ALIGN)
                && run.bytes.place().end == bytes.place().start
                && let Some(joined) = run.bytes.through(&bytes)
            {
                run.parts.push(part(run.bytes.len()));
                run.bytes = joined;
            } else {
                runs.push(Run { parts: vec![part(0)], bytes });
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use checkpoint::Checkpoint;
    use meta::{DType, Shape};
    use testkit::SafetensorsWriter;

    use super::*;
    use crate::Companions;

    /// Every value of every weight is in exactly one run, none is longer than it may be, and neighbours travel together.
    #[test]
    fn runs_cover_every_value_once() {
        let shapes = [("a", [7, 16]), ("b", [1, 8]), ("c", [40, 10]), ("d", [3, 3])];
        let mut writer = SafetensorsWriter::new();
        for (name, dims) in shapes {
            let shape = Shape::from(dims);
            writer = writer.values(name, Encoding::BF16, shape, &vec![1.0; shape.count()]).unwrap();
        }
        let bytes = writer.finish().unwrap();
        let file = Checkpoint::from_memory(("cast.safetensors", bytes.into()), Vec::new()).unwrap();
        let spec = |(name, _): (&str, [usize; 2])| {
            let entry = file.entry(name).unwrap();
            WeightSpec {
                name: name.into(),
                encoding: entry.encoding(),
                kept_as: DType::F8E4M3.into(),
                shape: *entry.shape(),
                padded: None,
                bytes: file.entry_bytes(entry),
                companions: Companions::default(),
                rounds_patches: false,
                fp8_product: false,
            }
        };
        let specs: Vec<WeightSpec> = shapes.map(spec).into();
        let manifest = Manifest::builder("cast", "test").block("all", false, specs).finish().unwrap();
        let (specs, layout) = (manifest.weights(), BlockLayout::new(&manifest, 0));
        assert!(layout.len() < 7 * 16 + 8 + 400 + 9 + 4 * 256, "as large as it is kept");
        for limit in [16, 64, 256, 1 << 20] {
            let mut seen = vec![0; layout.len()];
            let runs = runs(specs, &layout, limit);
            for run in &runs {
                assert!(run.bytes.len() <= limit);
                let mut end = 0;
                for part in &run.parts {
                    assert_eq!((part.from, part.from % ALIGN), (end, 0), "parts follow each other");
                    end = part.from + part.count * 2;
                    seen[part.to..part.to + part.count].iter_mut().for_each(|seen| *seen += 1);
                }
                assert_eq!(end, run.bytes.len());
            }
            for (index, spec) in specs.iter().enumerate() {
                let at = layout.offset(index);
                assert!(seen[at..at + spec.shape.count()].iter().all(|seen| *seen == 1), "{limit}");
            }
            assert_eq!(seen.iter().sum::<i32>(), 7 * 16 + 8 + 400 + 9);
            if limit == 1 << 20 {
                assert_eq!(runs.len(), 1, "all of them lie one after the other");
            }
        }
    }
}
