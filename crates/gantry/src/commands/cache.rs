//! `gantry cache`: the losslessly coded weights that are kept for the next start.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use meta::{ByteSize, Moment};
use residency::SideCars;
use serde::Serialize;

use super::{print, print_json};
use crate::cli::{CacheListArgs, MachineArgs};
use crate::environment;
use crate::table::Table;

/// What is kept.
#[derive(Serialize)]
struct Report {
    folder: String,
    limit_bytes: u64,
    bytes: u64,
    files: Vec<CodedFile>,
    /// What was removed, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    removed_bytes: Option<u64>,
}

/// The coded weights of one model.
#[derive(Serialize)]
struct CodedFile {
    /// The model; none if the file cannot be read.
    model: Option<String>,
    file: String,
    bytes: u64,
    last_used: String,
}

pub(super) fn run(machine: &MachineArgs, args: &CacheListArgs) -> Result<ExitCode> {
    let folder =
        environment::coded_cache_dir().context("there is no cache folder; name one with GANTRY_CACHE_DIR")?;
    let cars = SideCars::new(folder, machine.coded_cache.0);
    let report = report(&cars, args.clear).with_context(|| cars.folder().display().to_string())?;
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&report.to_text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(cars: &SideCars, clear: bool) -> Result<Report> {
    let removed_bytes = if clear { Some(cars.clear()?) } else { None };
    let file = |car: residency::SideCar| CodedFile {
        model: car.model,
        file: car.path.display().to_string(),
        bytes: car.bytes,
        last_used: told(car.last_used),
    };
    // The one that was used last first.
    let files: Vec<CodedFile> = cars.list()?.into_iter().rev().map(file).collect();
    Ok(Report {
        folder: cars.folder().display().to_string(),
        limit_bytes: cars.limit_bytes(),
        bytes: files.iter().map(|file| file.bytes).sum(),
        files,
        removed_bytes,
    })
}

fn told(time: SystemTime) -> String {
    format!("{}Z", Moment::utc(time).to_text(0))
}

impl Report {
    fn to_text(&self) -> String {
        if let Some(bytes) = self.removed_bytes {
            return format!("removed {} of coded weights from {}\n", ByteSize(bytes), self.folder);
        }
        let limit = ByteSize(self.limit_bytes);
        if self.files.is_empty() {
            return format!("no coded weights are kept in {}, which may have {limit} of them\n", self.folder);
        }
        let mut table = Table::new(&["model", "size", "last used"]);
        for file in &self.files {
            let model = file.model.as_deref().unwrap_or("cannot be read");
            table.row(&[model, &ByteSize(file.bytes).to_string(), &file.last_used]);
        }
        format!("{table}\n{} of {limit} in {}\n", ByteSize(self.bytes), self.folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_listed_and_removed() {
        let dir = testkit::ScratchDir::new().unwrap();
        let cars = SideCars::new(dir.path().join("coded"), 1 << 30);
        let empty = report(&cars, false).unwrap();
        assert!(empty.files.is_empty() && empty.to_text().contains("no coded weights are kept"));
        std::fs::create_dir(cars.folder()).unwrap();
        std::fs::write(cars.folder().join("0123.coded"), vec![7; 5000]).unwrap();
        std::fs::write(cars.folder().join("4567.source"), "0123").unwrap();
        let listed = report(&cars, false).unwrap();
        assert_eq!((listed.bytes, listed.files.len()), (5000, 1));
        assert!(listed.to_text().contains("cannot be read"), "{}", listed.to_text());
        let removed = report(&cars, true).unwrap();
        assert_eq!(removed.removed_bytes, Some(5000));
        assert!(removed.files.is_empty() && std::fs::read_dir(cars.folder()).unwrap().next().is_none());
        assert!(removed.to_text().starts_with("removed "), "{}", removed.to_text());
    }
}
