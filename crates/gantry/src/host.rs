//! What is asked of the operating system: free space, limits, the page cache, the width of the terminal. Where a
//! system has no answer there is none, and nobody guesses.

use std::fs::File;
use std::path::Path;

/// Bytes that this user may still write on the disk of a folder.
#[cfg(unix)]
pub(crate) fn free_space(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    disk.f_bavail.checked_mul(disk.f_frsize)
}

#[cfg(not(unix))]
pub(crate) fn free_space(_folder: &Path) -> Option<u64> {
    None
}

/// Why this user may not make files in a folder; nothing if it may, as far as its rights say.
#[cfg(unix)]
pub(crate) fn refuses_writing(folder: &Path) -> Option<String> {
    use rustix::fs::Access;
    rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK).err().map(|error| error.to_string())
}

#[cfg(not(unix))]
pub(crate) fn refuses_writing(folder: &Path) -> Option<String> {
    let rights = std::fs::metadata(folder).ok()?.permissions();
    rights.readonly().then(|| "it is read-only".to_owned())
}

/// How many bytes this process may lock in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(unix), allow(dead_code, reason = "only unix has such a limit"))]
pub(crate) enum LockLimit {
    Unlimited,
    Bytes(u64),
}

/// The limit of locked memory (`ulimit -l`).
#[cfg(unix)]
pub(crate) fn lock_limit() -> Option<LockLimit> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    Some(limit.current.map_or(LockLimit::Unlimited, LockLimit::Bytes))
}

#[cfg(not(unix))]
pub(crate) fn lock_limit() -> Option<LockLimit> {
    None
}

/// Characters in a line of the terminal that the output goes to.
#[cfg(unix)]
pub(crate) fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    Some(usize::from(size.ws_col)).filter(|columns| *columns > 0)
}

#[cfg(not(unix))]
pub(crate) fn terminal_width() -> Option<usize> {
    None
}

/// Whether the page at an offset of a file is in memory already. Nothing is read from the disk for the answer.
#[cfg(target_os = "linux")]
pub(crate) fn is_in_page_cache(file: &File, offset: u64) -> Option<bool> {
    use rustix::io::{Errno, ReadWriteFlags};
    let mut byte = [0];
    let mut buffers = [std::io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(count) => Some(count > 0),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_in_page_cache(_file: &File, _offset: u64) -> Option<bool> {
    None
}

/// Opens a file to be read past the page cache, by whole pages; none where that is not possible.
#[cfg(target_os = "linux")]
pub(crate) fn open_direct(path: &Path) -> Option<File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn open_direct(_path: &Path) -> Option<File> {
    None
}

/// Asks the system to forget what it keeps of a range of a file in memory, so that the next read comes from the disk.
/// It need not do so: a page that somebody has mapped stays.
#[cfg(target_os = "linux")]
pub(crate) fn forget_pages(file: &File, offset: u64, bytes: u64) {
    // What is not granted is noticed by whoever asks for the pages afterwards.
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(bytes), rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn forget_pages(_file: &File, _offset: u64, _bytes: u64) {}

/// Which share of a range of a file is in memory, from 64 places in it.
pub(crate) fn cached_share(file: &File, offset: u64, bytes: u64) -> Option<f64> {
    const PLACES: u64 = 64;
    let place = |index: u64| offset + (bytes / PLACES).saturating_mul(index);
    let mut cached = 0;
    for index in 0..PLACES {
        cached += u64::from(is_in_page_cache(file, place(index))?);
    }
    Some(cached as f64 / PLACES as f64)
}

/// Bytes of memory that a process occupies.
pub(crate) fn resident_bytes(process: u32) -> Option<u64> {
    process_memory(process).map(|memory| memory.resident_bytes)
}

/// The memory of a process by what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct ProcessMemory {
    /// All of it.
    pub(crate) resident_bytes: u64,
    /// Nobody else's, and in no file.
    pub(crate) private_bytes: u64,
    /// Pages of mapped files, which the system may take back.
    pub(crate) file_bytes: u64,
    /// Shared memory, and files of a file system that is kept in memory.
    pub(crate) shared_bytes: u64,
    /// Locked or pinned, as far as the system counts it.
    pub(crate) pinned_bytes: u64,
}

/// The memory of a process, where the system tells it.
pub(crate) fn process_memory(process: u32) -> Option<ProcessMemory> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let bytes = |field: &str| {
        let rest = status.lines().find_map(|line| line.strip_prefix(field))?;
        rest.trim_start_matches(':')
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()?
            .checked_mul(1024)
    };
    Some(ProcessMemory {
        resident_bytes: bytes("VmRSS")?,
        private_bytes: bytes("RssAnon")?,
        file_bytes: bytes("RssFile")?,
        shared_bytes: bytes("RssShmem")?,
        pinned_bytes: bytes("VmLck")?.saturating_add(bytes("VmPin")?),
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use checkpoint::Checkpoint;
    use device::{Device, Registry};
    use device_cpu::CpuBackend;
    use meta::DeviceId;
    use residency::{Cancel, LoadOptions, Manifest, Residency};
    use serde_json::json;

    use super::*;
    use crate::planning::device_specs;

    #[test]
    fn the_system_answers() {
        let dir = testkit::ScratchDir::new().unwrap();
        assert!(free_space(dir.path()).unwrap() > 0);
        assert_eq!(free_space(Path::new("/no/such/folder")), None);
        assert_eq!(refuses_writing(dir.path()), None);
        assert!(refuses_writing(Path::new("/proc/no such folder")).is_some());
        assert!(lock_limit().is_some());
        assert!(resident_bytes(std::process::id()).unwrap() > 1 << 20);
        let memory = process_memory(std::process::id()).unwrap();
        assert!(memory.private_bytes > 0 && memory.private_bytes < memory.resident_bytes, "{memory:?}");
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        // A file that was just written is in memory, where the file system can tell.
        assert!(cached_share(&file, 0, 1 << 20).is_none_or(|share| share > 0.9));
        forget_pages(&file, 0, 1 << 20);
    }

    #[test]
    fn models_that_were_named_are_read_ahead() {
        const VALUES: usize = 16 << 20;
        let dir = testkit::ScratchDir::new().unwrap();
        let path = dir.path().join("model.safetensors");
        let tensors: Vec<_> = (0..4)
            .map(|block| {
                json!({ "name": format!("blocks.{block}.weight"), "dtype": "BF16", "shape": [1024, VALUES / 4096],
                    "scale": 1.0, "offset": 0.0 })
            })
            .collect();
        let manifest = json!({ "file": "model.safetensors", "tensors": tensors }).to_string();
        testkit::Manifest::parse(&manifest).unwrap().write_to(dir.path()).unwrap();
        let file = File::open(&path).unwrap();
        let bytes = file.metadata().unwrap().len();
        file.sync_all().unwrap();
        forget_pages(&file, 0, bytes);
        // A file system in memory forgets nothing.
        if cached_share(&file, 0, bytes).is_none_or(|share| share > 0.5) {
            eprintln!("left out: the page cache does not forget {}", path.display());
            return;
        }
        let devices = Registry::new([Device::new(Arc::new(CpuBackend::new()), 1 << 30)]);
        let specs = device_specs(&devices, 1e9);
        let residency = Residency::new(devices);
        let model = Manifest::by_names(&Checkpoint::open(&path).unwrap(), "model").unwrap();
        let plan = placement::plan(&Residency::plan_request(&model, DeviceId::CPU, specs)).unwrap();
        let id = residency.load(model, plan, LoadOptions::default()).unwrap();
        let reading = residency.read_ahead(&[id]).unwrap();
        let since = Instant::now();
        while reading.done() != [id] || cached_share(&file, 0, bytes).unwrap() < 1.0 {
            assert!(since.elapsed() < Duration::from_secs(60), "{:?}", cached_share(&file, 0, bytes));
            std::thread::sleep(Duration::from_millis(5));
        }
        // What has copies needs no reading.
        let _session = residency.open(id, &Cancel::default()).unwrap();
        assert!(residency.read_ahead(&[id]).is_none());
    }
}
