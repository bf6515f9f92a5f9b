//! Prints a plan as a table: blocks, devices, prediction, notes.

use std::fmt;

use meta::{ByteSize, DeviceId};

use crate::plan::{BlockMode, BlockPlan, Plan};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = rows(&self.blocks);
        let width = rows.iter().map(|row| row.label().chars().count()).max().unwrap_or(0).max("blocks".len());
        writeln!(f, "{:width$}  {:>10}  {:8}  {:8}  runs on", "blocks", "bytes", "mode", "home")?;
        for row in &rows {
            let mode = if row.is_kept_coded { "coded" } else { row.mode.name() };
            let (label, bytes) = (row.label(), ByteSize(row.bytes));
            let home = if row.from_disk { "disk".to_owned() } else { row.home.to_string() };
            writeln!(f, "{label:width$}  {bytes:>10}  {mode:8}  {home:8}  {}", row.runs_on)?;
        }
        writeln!(f)?;
        write_devices(self, f)?;
        writeln!(f)?;
        write_prediction(self, f)?;
        self.notes.iter().try_for_each(|note| write!(f, "\nnote: {note}"))
    }
}

fn write_devices(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let columns = ["weights", "ring", "working", "in all", "available"];
    let asks = plan.devices.iter().any(|usage| usage.asked_bytes.is_some());
    let asked = asks.then_some("asked");
    write!(f, "{:8}", "device")?;
    asked.iter().chain(&columns).try_for_each(|column| write!(f, "  {column:>10}"))?;
    writeln!(f)?;
    for usage in &plan.devices {
        write!(f, "{:8}", usage.device)?;
        let numbers = [
            usage.weight_bytes,
            usage.ring_bytes,
            usage.working_bytes,
            usage.total_bytes(),
            usage.available_bytes,
        ];
        let asked = usage.asked_bytes.iter();
        asked.chain(&numbers).try_for_each(|bytes| write!(f, "  {:>10}", ByteSize(*bytes)))?;
        writeln!(f)?;
    }
    Ok(())
}

fn write_prediction(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let p = &plan.prediction;
    let slots = plan.ring.filter(|ring| ring.slots > 0).map(|ring| {
        let plural = if ring.slots == 1 { "" } else { "s" };
        format!("through {} slot{plural} of {}", ring.slots, ByteSize(ring.slot_bytes))
    });
    let travels = |block: &&BlockPlan| block.coded_bytes.is_some() && !block.is_kept_coded();
    let coded = plan.blocks.iter().filter(travels);
    let coded: Vec<u64> = coded.map(|block| block.bytes).collect();
    let streamed = match coded.len() {
        0 => ByteSize(plan.streamed_bytes()).to_string(),
        blocks => {
            let plain = ByteSize(coded.iter().sum());
            format!("{} ({blocks} blocks of {plain} coded)", ByteSize(plan.streamed_bytes()))
        }
    };
    let kept = from_disk(plan) + &kept_coded(plan);
    if !p.known {
        write!(f, "predicted time per step: not measured yet")?;
        slots.iter().try_for_each(|slots| write!(f, "; {streamed} copied {slots}"))?;
        return write!(f, "{kept}\nallocation {}", plan.to_allocation());
    }
    write!(f, "predicted {} per step: {} computing", seconds(p.seconds_per_step), seconds(p.compute_s))?;
    for (part_s, what) in
        [(p.decode_s, "decoding"), (p.hop_s, "moving activations"), (p.outside_s, "outside of the blocks")]
    {
        if part_s > 0.0 {
            write!(f, ", {} {what}", seconds(part_s))?;
        }
    }
    if let Some(slots) = slots {
        let (waiting, copying) = (seconds(p.stall_s), seconds(p.copy_s));
        write!(f, ", {waiting} waiting; {streamed} copied in {copying} {slots}")?;
    }
    write!(f, "{kept}\nallocation {}", plan.to_allocation())
}

/// What is read from the disk, as an addition to a sentence.
fn from_disk(plan: &Plan) -> String {
    plan.reading.map_or_else(String::new, |reading| {
        format!(
            ", {} of that from the disk through {} buffers of {}",
            ByteSize(plan.disk_bytes()),
            reading.buffers,
            ByteSize(reading.buffer_bytes)
        )
    })
}

/// What is kept coded, as an addition to a sentence.
fn kept_coded(plan: &Plan) -> String {
    let kept = || plan.blocks.iter().filter(|block| block.is_kept_coded());
    match kept().count() {
        0 => String::new(),
        blocks => {
            let plain = ByteSize(kept().map(|block| block.bytes).sum());
            let coded = ByteSize(kept().filter_map(|block| block.coded_bytes).sum());
            format!("; {blocks} blocks of {plain} kept coded in {coded}")
        }
    }
}

/// A time as people say it: `21.4 ms`, `3.20 s`, `33 min 13 s`.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 120.0 => format!("{} min {:02} s", (s.round() / 60.0).floor(), s.round() % 60.0),
        s if s >= 1.0 => format!("{s:.2} s"),
        s => format!("{:.1} ms", s * 1e3),
    }
}

/// Blocks of one family (`double_blocks.*`) with the same place.
struct Row<'a> {
    family: &'a str,
    /// The numbers after the family name, ascending runs merged; empty for a block without number.
    runs: Vec<(u64, u64)>,
    bytes: u64,
    mode: BlockMode,
    is_kept_coded: bool,
    from_disk: bool,
    home: DeviceId,
    runs_on: DeviceId,
}

impl Row<'_> {
    fn label(&self) -> String {
        let runs: Vec<String> = self
            .runs
            .iter()
            .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") })
            .collect();
        match runs.is_empty() {
            true => self.family.to_owned(),
            false => format!("{}.{}", self.family, runs.join(",")),
        }
    }
}

fn rows(blocks: &[BlockPlan]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for block in blocks {
        let (family, number) = split_name(&block.name);
        let same = |row: &&mut Row<'_>| {
            !row.runs.is_empty()
                && row.family == family
                && (row.mode, row.home, row.runs_on) == (block.mode, block.home, block.runs_on)
                && (row.is_kept_coded, row.from_disk) == (block.is_kept_coded(), block.from_disk)
        };
        match (number, rows.iter_mut().find(same)) {
            (Some(number), Some(row)) => {
                row.bytes += block.bytes;
                match row.runs.last_mut() {
                    Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
                    _ => row.runs.push((number, number)),
                }
            }
            (number, _) => rows.push(Row {
                family,
                runs: number.map(|n| (n, n)).into_iter().collect(),
                bytes: block.bytes,
                mode: block.mode,
                is_kept_coded: block.is_kept_coded(),
                from_disk: block.from_disk,
                home: block.home,
                runs_on: block.runs_on,
            }),
        }
    }
    rows
}

/// `double_blocks.3` is number 3 of `double_blocks`; `img_in` has no number.
fn split_name(name: &str) -> (&str, Option<u64>) {
    match name.rsplit_once('.') {
        Some((family, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            number.parse().map_or((name, None), |number| (family, Some(number)))
        }
        _ => (name, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_people_say_them() {
        for (time, text) in [
            (0.0214, "21.4 ms"),
            (3.2, "3.20 s"),
            (1993.05, "33 min 13 s"),
            (120.0, "2 min 00 s"),
            (179.7, "3 min 00 s"),
        ] {
            assert_eq!(seconds(time), text);
        }
    }
}
