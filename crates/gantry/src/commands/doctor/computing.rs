//! What computes: the CPU and its memory, the GPUs, and the libraries that they need.

use std::fs;
use std::path::{Path, PathBuf};

use device::{Device, MemoryInfo};
use meta::{ByteSize, DeviceKind};
use serde_json::{Value, json};

use super::check::Check;
use crate::bandwidth;
use crate::host::{self, LockLimit};
use crate::machine::Machine;

/// A model of 12 billion parameters in 8 bits with its text encoders, in round numbers; with less memory only smaller models run.
const MEMORY_FOR_LARGE_MODELS: u64 = 16 << 30;
/// NVIDIA's number on the PCI bus.
const NVIDIA: &str = "0x10de";
/// AMD's.
const AMD: &str = "0x1002";

/// The CPU and the memory of the host.
pub(super) fn host(machine: &Machine) -> Vec<Check> {
    vec![cpu(machine), memory(machine)]
}

fn cpu(machine: &Machine) -> Check {
    let description = machine.cpu().description();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let allowed = machine.groups().cores();
    let facts = json!({
        "name": description.name,
        "detail": description.detail,
        "cores": cores,
        "group_cores": allowed,
    });
    let says = format!("{}: {}.", description.name, description.detail);
    let check = match allowed {
        Some(share) if share + 0.01 < cores as f64 => Check::attention(
            "cpu",
            format!("{says} This container may use {share:.1} of {cores} cores."),
            "Give the container more CPUs if computing on the CPU is slow.",
        ),
        _ => Check::works("cpu", says),
    };
    check.with_facts(facts)
}

fn memory(machine: &Machine) -> Check {
    let memory = match machine.cpu().memory() {
        Ok(memory) => memory,
        Err(error) => {
            return Check::attention(
                "memory",
                format!("The system does not tell how much memory is free: {error}."),
                "Nothing; models are placed by the total alone.",
            );
        }
    };
    let limit = machine.groups().memory().map(|group| group.limit);
    check_memory(memory, limit)
}

/// What there is to use, where a container may have a limit of its own.
fn check_memory(memory: MemoryInfo, limit: Option<u64>) -> Check {
    let facts = json!({
        "total_bytes": memory.total,
        "available_bytes": memory.free,
        "group_limit_bytes": limit,
    });
    let is_contained = limit.is_some_and(|limit| limit <= memory.total);
    let whose = if is_contained { " that this container may use" } else { "" };
    let says = format!("{} of {}{whose} are available", ByteSize(memory.free), ByteSize(memory.total));
    let check = if memory.free >= MEMORY_FOR_LARGE_MODELS {
        Check::works("memory", format!("{says}."))
    } else {
        let advice = match is_contained {
            true => "Raise the container's limit, or use a model in GGUF (Q4_K_S takes 7 GB of 24).",
            false => "Close other programs, or use a model in GGUF (Q4_K_S takes 7 GB of 24).",
        };
        Check::attention(
            "memory",
            format!("{says}. That is little for models of 12 billion parameters."),
            advice,
        )
    };
    check.with_facts(facts)
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// The GPUs: one check for each that was opened, and one for what CUDA needs.
pub(super) fn gpus(machine: &Machine, are_wanted: bool) -> Vec<Check> {
    let mut checks = Vec::new();
    let devices: Vec<&Device> =
        machine.registry().iter().filter(|device| device.id().kind == DeviceKind::Cuda).collect();
    for device in &devices {
        checks.push(gpu(machine, device));
    }
    for device in machine.registry().iter().filter(|device| device.id().kind == DeviceKind::Sim) {
        let says = format!("{} is a simulation: {}.", device.id(), device.description().detail);
        checks.push(Check::works("gpu", says).with_facts(json!({ "device": device.id().to_string() })));
    }
    checks.push(if !are_wanted {
        Check::works("cuda", "GPUs are switched off by --cpu.").with_facts(json!({ "available": false }))
    } else if devices.is_empty() {
        no_cuda(machine.note().unwrap_or("no CUDA device was opened"))
    } else {
        libraries()
    });
    if !devices.is_empty() {
        checks.push(locked_memory());
    }
    checks
}

/// One card: what it is, whether it computes what the CPU computes, and how fast bytes reach it.
fn gpu(machine: &Machine, device: &Device) -> Check {
    let (id, description) = (device.id(), device.description());
    let memory = device.memory().unwrap_or_default();
    let link = bandwidth::measure(device, machine.cpu()).ok();
    // Attention takes every library that there is, cuDNN included.
    let result = conformance::run(machine.cpu(), std::slice::from_ref(device), "attention");
    let facts = json!({
        "device": id.to_string(),
        "name": description.name,
        "detail": description.detail,
        "driver": driver_version(),
        "total_bytes": memory.total,
        "free_bytes": memory.free,
        "bandwidth_bytes_per_s": link,
        "computes": result.as_ref().is_ok_and(conformance::Report::passed),
    });
    let speed = link.map_or(String::new(), |link| {
        format!("; {:.1} GB/s from pinned memory", link.pinned_to_device / 1e9)
    });
    let driver = driver_version().map_or(String::new(), |version| format!(", driver {version}"));
    let says = format!(
        "{id} is {} with {} ({} free){driver}{speed}.",
        description.name,
        ByteSize(memory.total),
        ByteSize(memory.free)
    );
    let check = match result {
        Ok(report) if report.passed() => {
            Check::works("gpu", format!("{says} It computes what the CPU computes."))
        }
        Ok(report) => Check::broken(
            "gpu",
            format!("{says} It computes something else than the CPU: {}.", one_line(&report.failures())),
            format!("Run `gantry selftest --device {id}` and report what it prints; until then use --cpu."),
        ),
        Err(error) => Check::broken(
            "gpu",
            format!("{says} It does not compute: {error}."),
            format!("Run `gantry selftest --device {id}`. Close programs that fill the card's memory."),
        ),
    };
    check.with_facts(facts)
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

/// Why there is no CUDA: calm where there is no card, a fault where there is one.
fn no_cuda(why: &str) -> Check {
    let why = why.trim_start_matches("no CUDA: ").trim_end_matches('.');
    let cards = cards();
    let facts = json!({ "available": false, "reason": why, "driver": driver_version(), "cards": cards });
    let count = |vendor: &str| cards.iter().filter(|card| card["vendor"] == vendor).count();
    let check = if count(NVIDIA) > 0 || driver_version().is_some() {
        let advice = if why.contains("driver") && !why.contains("install") {
            "Install NVIDIA's driver (nvidia-smi must work), then run this again.".to_owned()
        } else if why.contains("install") {
            "Install what is missing as said above, then run this again; one library is named at a time."
                .to_owned()
        } else {
            "See whether nvidia-smi works, then run this again.".to_owned()
        };
        Check::broken("cuda", format!("There is an NVIDIA card, but it cannot be used: {why}."), advice)
    } else if count(AMD) > 0 {
        Check::attention(
            "cuda",
            "There is a graphics card of AMD; Gantry computes on NVIDIA cards and on the CPU only.",
            "Nothing; models compute on the CPU, which is slow for large models.",
        )
    } else {
        Check::attention(
            "cuda",
            format!(
                "There is no GPU to use: {why}. Models compute on the CPU, which is slow for large models."
            ),
            "Nothing if this machine has no NVIDIA card; otherwise install NVIDIA's driver.",
        )
    };
    check.with_facts(facts)
}

/// The graphics cards on the PCI bus.
fn cards() -> Vec<Value> {
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else { return Vec::new() };
    let card = |path: PathBuf| {
        // Display controllers have class 03.
        let is_display = text(&path.join("class"))?.starts_with("0x03");
        let vendor = text(&path.join("vendor"))?;
        is_display.then(|| json!({ "vendor": vendor, "device": text(&path.join("device")) }))
    };
    devices.flatten().take(4096).filter_map(|entry| card(entry.path())).collect()
}

/// The version of NVIDIA's kernel module.
fn driver_version() -> Option<String> {
    let line = text(Path::new("/proc/driver/nvidia/version"))?;
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.lines().next()?.split_whitespace().find(is_version).map(str::to_owned)
}

/// The libraries of CUDA, by the beginnings of their names: what they are, and whether they are needed.
const LIBRARIES: [(&str, &str); 4] = [
    ("libcuda.so", "driver"),
    ("libnvrtc.so", "NVRTC"),
    ("libcublasLt.so", "cuBLASLt"),
    ("libcudnn.so", "cuDNN"),
];

/// Where the libraries were loaded from: by now attention has computed, so all that are used are loaded.
fn libraries() -> Check {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let found: Vec<(&str, Option<&str>)> =
        LIBRARIES.into_iter().map(|(start, name)| (name, loaded(&maps, start))).collect();
    let lines = found.iter().filter_map(|(name, path)| Some(format!("{name}: {}", (*path)?))).collect();
    let facts: serde_json::Map<String, Value> =
        found.iter().map(|(name, path)| ((*name).to_owned(), json!(path))).collect();
    let has_cudnn = found.iter().any(|(name, path)| *name == "cuDNN" && path.is_some());
    let check = if has_cudnn || maps.is_empty() {
        Check::works("cuda", "The driver, NVRTC, cuBLASLt and cuDNN are there.")
    } else {
        Check::attention(
            "cuda",
            "The driver, NVRTC and cuBLASLt are there; cuDNN 9 is not, or could not be used. Attention takes about \
             twice as long without it.",
            "pip install nvidia-cudnn-cu12 (or -cu13 for CUDA 13), in a Python environment that is active or that \
             CUDA_PATH names.",
        )
    };
    check.with_lines(lines).with_facts(json!({ "available": true, "libraries": facts }))
}

/// The path of the first loaded library whose name begins so.
fn loaded<'a>(maps: &'a str, start: &str) -> Option<&'a str> {
    let paths = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    paths.into_iter().find(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with(start)))
}

/// NVIDIA's driver pins memory itself and does not count it here, but containers and other systems may.
fn locked_memory() -> Check {
    let limit = host::lock_limit();
    let bytes = match limit {
        Some(LockLimit::Bytes(bytes)) => Some(bytes),
        _ => None,
    };
    let says = match limit {
        Some(LockLimit::Bytes(bytes)) => format!(
            "The limit of locked memory is {}. NVIDIA's driver does not count pinned memory against it: pinned \
             copies were measured above.",
            ByteSize(bytes)
        ),
        Some(LockLimit::Unlimited) => "Locked memory has no limit.".to_owned(),
        None => "This system has no limit of locked memory.".to_owned(),
    };
    Check::works("locked_memory", says).with_facts(json!({ "limit_bytes": bytes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_said_to_be_one() {
        let memory = MemoryInfo { total: 8 << 30, free: 6 << 30, cached: 0 };
        let check = check_memory(memory, Some(8 << 30));
        assert!(check.says.contains("that this container may use"), "{}", check.says);
        assert!(check.what_to_do.is_some_and(|advice| advice.contains("container")));
        assert_eq!(check.facts["group_limit_bytes"], 8u64 << 30);
        // A limit beyond the machine's memory limits nothing.
        let memory = MemoryInfo { total: 64 << 30, free: 60 << 30, cached: 0 };
        let check = check_memory(memory, Some(128 << 30));
        assert!(!check.says.contains("container") && check.what_to_do.is_none(), "{}", check.says);
    }

    #[test]
    fn loaded_libraries_are_found_by_name() {
        let maps = "7f00-7f01 r-xp 0 08:01 1 /usr/lib/libcublasLt.so.12\n7f02-7f03 rw-p 0 00:00 0\n";
        assert_eq!(loaded(maps, "libcublasLt.so"), Some("/usr/lib/libcublasLt.so.12"));
        assert_eq!(loaded(maps, "libcudnn.so"), None);
    }

    #[test]
    fn missing_cuda_is_told_without_its_prefix() {
        let check = no_cuda("no CUDA: this machine has no NVIDIA driver");
        assert_eq!(check.facts["reason"], "this machine has no NVIDIA driver");
        assert!(check.what_to_do.is_some());
    }
}
