//! Coded blocks that are kept between starts: the next start has them at once, a damaged file is thrown away and made
//! again, a process that is killed while it writes leaves nothing, and the folder keeps to its limit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use meta::{DType, DeviceId};
use placement::{AllocationText, CodingPolicy, Plan};
use residency::{
    Cancel, CodingReport, CodingState, CodingTime, LoadOptions, Manifest, ModelId, Residency, SideCars,
};
use support::*;
use testkit::ScratchDir;

const STREAMED: &str = "sim:0,0%;cpu,100%";
const PLENTY: u64 = 1 << 30;

fn coded_plan(manifest: &Manifest, residency: &Residency, text: &str) -> Plan {
    let mut request = Residency::plan_request(manifest, DeviceId::sim(0), device_specs(residency.devices()));
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.coding.policy = CodingPolicy::Force;
    request.coding.coded_bytes = Residency::coded_bytes(manifest);
    request.coding.decode_bytes_per_s = Some(1e9);
    placement::plan(&request).unwrap()
}

/// A start of the program.
struct Start {
    residency: Residency,
    id: ModelId,
}

impl Start {
    fn of(file: &ModelFile, folder: &Path, limit: u64, (text, coding): (&str, CodingTime)) -> Start {
        let cars = SideCars::new(folder.to_owned(), limit);
        let residency = Residency::new(machine(&["64mb@20gbps"])).keeping_coded(cars);
        let manifest = manifest(file, "model");
        let plan = coded_plan(&manifest, &residency, text);
        let id = residency.load(manifest, plan, LoadOptions { coding, ..LoadOptions::default() }).unwrap();
        Start { residency, id }
    }

    /// A step, after which blocks are coded, and one with them.
    fn run(&self) -> (Vec<f32>, CodingReport) {
        let session = self.residency.open(self.id, &Cancel::default()).unwrap();
        let first = forward(&session, &input()).unwrap();
        let start = Instant::now();
        while self.report().done < self.report().blocks {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", self.report());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(forward(&session, &input()).unwrap(), first);
        session.verify().unwrap();
        let report = self.report();
        assert_eq!(report.state, CodingState::Coded, "{report:?}");
        (first, report)
    }

    fn report(&self) -> CodingReport {
        self.residency.coding(self.id).unwrap()
    }

    /// Waits until so many files are kept.
    fn until_kept(&self, count: usize) -> Vec<PathBuf> {
        let start = Instant::now();
        loop {
            let cars = self.residency.side_cars().unwrap();
            let kept = cars.list().unwrap();
            let noted = names(cars.folder()).iter().filter(|name| name.ends_with(".source")).count();
            if kept.len() == count && noted >= count {
                return kept.into_iter().map(|car| car.path).collect();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{kept:?} {:?}", cars.take_notes());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn notes(&self) -> Vec<String> {
        self.residency.side_cars().unwrap().take_notes()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn plain(file: &ModelFile) -> Vec<f32> {
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, file, "plain", STREAMED, residency::Retention::Default);
    run(&residency, id).unwrap()
}

/// Coded once, read at every start after, whether the load waits for coding or not, and whether blocks travel or stay.
#[test]
fn the_next_start_has_them_at_once() {
    for dtype in [DType::BF16, DType::F8E4M3] {
        let (file, dir) = (write_model(1, dtype.into()), ScratchDir::new().unwrap());
        let expected = plain(&file);
        for (text, coding) in
            [(STREAMED, CodingTime::Beside), ("", CodingTime::Beside), (STREAMED, CodingTime::First)]
        {
            let folder = dir.path().join(format!("{}-{coding:?}", text.len()));
            let first = Start::of(&file, &folder, PLENTY, (text, coding));
            let (output, report) = first.run();
            assert_eq!((&output, report.is_read), (&expected, false));
            let kept = first.until_kept(1);
            assert!(first.notes().is_empty());
            let bytes = fs::metadata(&kept[0]).unwrap().len();
            let model = manifest(&file, "model").bytes();
            assert!(bytes < model * 95 / 100, "{dtype}: {bytes} of {model} bytes are read from the disk");
            let second = Start::of(&file, &folder, PLENTY, (text, coding));
            let session = second.residency.open(second.id, &Cancel::default()).unwrap();
            let report = second.report();
            assert_eq!((report.state, report.is_read, report.done), (CodingState::Coded, true, BLOCKS));
            assert_eq!(forward(&session, &input()).unwrap(), expected, "{dtype} {text:?} {coding:?}");
            session.verify().unwrap();
            drop(session);
            // What lies in a file takes nothing of the host.
            let cpu = second.residency.devices().get(DeviceId::CPU).unwrap().ledger().report();
            assert_eq!((cpu.used, cpu.reserved), (0, 0));
            // Whoever clears the folder takes nothing from a model that runs.
            assert_eq!(second.residency.side_cars().unwrap().clear().unwrap(), bytes);
            assert!(names(&folder).is_empty(), "{:?}", names(&folder));
            assert_eq!(run(&second.residency, second.id).unwrap(), expected);
        }
    }
}

/// The same weights in another file, or at another date, share a side-car; other weights have another.
#[test]
fn the_content_tells_side_cars_apart() {
    let (file, dir) = (write_model(2, DType::BF16.into()), ScratchDir::new().unwrap());
    let start = |file: &ModelFile| Start::of(file, dir.path(), PLENTY, (STREAMED, CodingTime::Beside));
    let first = start(&file);
    first.run();
    let kept = first.until_kept(1);
    drop(first);
    let touched = fs::File::options().write(true).open(&file.path).unwrap();
    touched.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    drop(touched);
    let again = start(&file);
    assert!(!again.run().1.is_read, "a file of another date may have other weights");
    let clock = Instant::now();
    while names(dir.path()).iter().filter(|name| name.ends_with(".source")).count() < 2 {
        assert!(clock.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(again.until_kept(1), kept, "it turned out to have the same");
    drop(again);
    let other = write_model(3, DType::BF16.into());
    let start = start(&other);
    assert!(!start.run().1.is_read);
    start.until_kept(2);
}

/// Any byte that is damaged is noticed, told with the file's name, and the blocks are coded again.
#[test]
fn a_damaged_file_is_thrown_away_and_made_again() {
    let (file, dir) = (write_model(4, DType::BF16.into()), ScratchDir::new().unwrap());
    let expected = plain(&file);
    let start = || Start::of(&file, dir.path(), PLENTY, (STREAMED, CodingTime::Beside));
    let first = start();
    first.run();
    let path = first.until_kept(1).remove(0);
    drop(first);
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let places = [0, 20, header / 2, header - 3, header + 1, (header + whole.len()) / 2, whole.len() - 1];
    for place in places.into_iter().map(Some).chain([None]) {
        match place {
            Some(place) => {
                let mut damaged = fs::File::options().read(true).write(true).open(&path).unwrap();
                damaged.seek(SeekFrom::Start(place as u64)).unwrap();
                let mut byte = [0];
                damaged.read_exact(&mut byte).unwrap();
                damaged.seek(SeekFrom::Start(place as u64)).unwrap();
                damaged.write_all(&[byte[0] ^ 0x11]).unwrap();
            }
            None => {
                let cut = fs::File::options().write(true).open(&path).unwrap();
                cut.set_len(whole.len() as u64 / 2).unwrap();
            }
        }
        let again = start();
        let (output, report) = again.run();
        assert_eq!(output, expected, "{place:?}");
        let notes = again.notes();
        let told = notes.first().map_or("", String::as_str);
        assert!(
            told.contains(&path.display().to_string()) && told.contains("damaged"),
            "{place:?}: {notes:?}"
        );
        assert_eq!(notes.len(), 1, "{notes:?}");
        // A block that is damaged is coded anew when its turn comes, and the file is made again at the next start.
        let in_a_block = place.is_some_and(|place| place > header);
        assert_eq!(report.is_read, in_a_block, "{place:?}");
        let again = if in_a_block {
            assert!(!path.exists());
            drop(again);
            let again = start();
            assert_eq!(again.run().0, expected);
            assert!(!again.report().is_read);
            again
        } else {
            again
        };
        again.until_kept(1);
        assert!(fs::read(&path).unwrap() == whole, "made again as it was");
    }
    assert!(start().run().1.is_read);
}

/// The least recently used go where there is no room; what has no room at all is not written, and that is told.
#[test]
fn the_folder_keeps_to_its_limit() {
    let dir = ScratchDir::new().unwrap();
    let files: Vec<ModelFile> = (5..8).map(|seed| write_model(seed, DType::BF16.into())).collect();
    let start = |file: &ModelFile, limit: u64| {
        let start = Start::of(file, dir.path(), limit, (STREAMED, CodingTime::Beside));
        let is_read = start.run().1.is_read;
        (start, is_read)
    };
    let (first, _) = start(&files[0], PLENTY);
    let bytes = fs::metadata(&first.until_kept(1)[0]).unwrap().len();
    drop(first);
    let limit = bytes * 5 / 2;
    start(&files[1], limit).0.until_kept(2);
    // The first is used again, so that the second is the one to go.
    std::thread::sleep(Duration::from_millis(20));
    assert!(start(&files[0], limit).1);
    let before = Start::of(&files[0], dir.path(), limit, (STREAMED, CodingTime::Beside));
    let kept: Vec<PathBuf> = before.until_kept(2);
    let (third, _) = start(&files[2], limit);
    let clock = Instant::now();
    while kept[0].exists() || third.residency.side_cars().unwrap().list().unwrap().len() != 2 {
        assert!(clock.elapsed() < Duration::from_secs(60), "{:?}", names(dir.path()));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(kept[1].exists());
    drop((before, third));
    assert!(start(&files[0], limit).1 && start(&files[2], limit).1 && !start(&files[1], bytes / 2).1);
    let (small, _) = start(&files[1], bytes / 2);
    let clock = Instant::now();
    let notes = loop {
        let notes = small.notes();
        if !notes.is_empty() || clock.elapsed() > Duration::from_secs(60) {
            break notes;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    assert!(notes.iter().any(|note| note.contains("are not kept")), "{notes:?}");
}

/// Coded blocks are not kept where the disk has little room for others then.
#[test]
fn a_disk_that_is_nearly_full_gets_none() {
    let (file, dir) = (write_model(9, DType::BF16.into()), ScratchDir::new().unwrap());
    let folder = dir.path().join("coded");
    let cars = SideCars::new(folder.clone(), PLENTY).leaving_free(|_| Some(10 << 30));
    let residency = Residency::new(machine(&["64mb@20gbps"])).keeping_coded(cars);
    let manifest = manifest(&file, "model");
    let plan = coded_plan(&manifest, &residency, STREAMED);
    let options = LoadOptions { coding: CodingTime::Beside, ..LoadOptions::default() };
    let id = residency.load(manifest, plan, options).unwrap();
    let start = Start { residency, id };
    start.run();
    let clock = Instant::now();
    let notes = loop {
        let notes = start.notes();
        if !notes.is_empty() || clock.elapsed() > Duration::from_secs(60) {
            break notes.join("\n");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let says = |part: &str| assert!(notes.contains(part), "{part}: {notes}");
    says("model");
    says("are not kept");
    says(&folder.display().to_string());
    says("10.00 GB free");
    says("--coded-cache 0gb");
    assert!(names(&folder).is_empty(), "{:?}", names(&folder));
}

/// Where a child process finds the folder, and the model's file.
const FOLDER: &str = "GANTRY_TEST_SIDE_CARS";

/// Not a test by itself: what the child process below does until it is killed. It codes and keeps one model after the other,
/// throwing each away again, so that it is nearly always writing.
#[test]
#[ignore = "runs as a child process of another test"]
fn child_process() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let file = write_model(9, DType::BF16.into());
    println!("\nready");
    loop {
        let start = Start::of(&file, &folder, PLENTY, (STREAMED, CodingTime::Beside));
        start.run();
        start.until_kept(1);
        start.residency.side_cars().unwrap().clear().unwrap();
    }
}

/// A process that is killed at any moment leaves whole files only, and drafts that no start takes for one.
#[test]
fn a_killed_process_leaves_nothing_half() {
    let file = write_model(9, DType::BF16.into());
    let expected = plain(&file);
    let mut drafts = 0;
    for round in 0..12u64 {
        let dir = ScratchDir::new().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child_process", "--ignored", "--nocapture"]).env(FOLDER, dir.path());
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
        // Until it writes, and then at another moment each time.
        let clock = Instant::now();
        while !names(dir.path()).iter().any(|name| name.ends_with(".part")) {
            assert!(clock.elapsed() < Duration::from_secs(60));
        }
        std::thread::sleep(Duration::from_micros(150 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        drafts += names(dir.path()).iter().filter(|name| name.ends_with(".part")).count();
        for name in names(dir.path()).iter().filter(|name| name.ends_with(".coded")) {
            checkpoint::Checkpoint::open(dir.path().join(name)).unwrap();
        }
        let next = Start::of(&file, dir.path(), PLENTY, (STREAMED, CodingTime::Beside));
        assert_eq!(next.run().0, expected);
        next.until_kept(1);
        assert_eq!(next.notes(), Vec::<String>::new(), "nothing was taken for a side-car that is none");
        drop(next);
        assert!(Start::of(&file, dir.path(), PLENTY, (STREAMED, CodingTime::Beside)).run().1.is_read);
    }
    println!("{drafts} drafts were left by 12 processes");
    assert!(drafts > 0, "no process was killed while it wrote");
}
