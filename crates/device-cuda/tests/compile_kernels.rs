//! Every kernel variant compiles for every generation of cards, without a card: set GANTRY_NVRTC_ROOT
//! to a folder that holds `libnvrtc.so*` somewhere (a CUDA toolkit, or `site-packages/nvidia`).
#![allow(clippy::unwrap_used, reason = "a test ends where something is missing")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use device_cuda::{CudaConfig, KernelCompiler, Variant, kernel_sources};

/// Ampere, Hopper and consumer Blackwell.
const CAPABILITIES: [(u32, u32); 3] = [(8, 0), (9, 0), (12, 0)];

#[test]
#[ignore = "needs NVRTC"]
fn every_kernel_compiles() {
    let root = std::env::var_os("GANTRY_NVRTC_ROOT");
    let root = root.expect("set GANTRY_NVRTC_ROOT to a folder with libnvrtc.so*: this test needs NVRTC");
    let mut search_roots = Vec::new();
    folders_with_nvrtc(Path::new(&root), &mut search_roots);
    assert!(!search_roots.is_empty(), "no libnvrtc.so* below {root:?}");
    let compiler = KernelCompiler::open(&CudaConfig { search_roots, ..CudaConfig::default() }).unwrap();
    let (major, minor) = compiler.version();
    println!("NVRTC {major}.{minor} knows {:?}", compiler.architectures());

    let (known, unknown): (Vec<_>, Vec<_>) = CAPABILITIES
        .into_iter()
        .partition(|(major, minor)| compiler.architectures().contains(&(major * 10 + minor)));
    println!("NVRTC {major}.{minor} does not know {unknown:?}");
    let jobs: Vec<_> = known.iter().flat_map(|c| files().into_iter().map(move |file| (*c, file))).collect();
    assert!(!jobs.is_empty());
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((capability, (variant, names))) =
                    jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    if let Err(failure) = compile(&compiler, variant, names, *capability) {
                        failures.lock().unwrap().push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    println!("{} of {} files with their definitions compiled", jobs.len() - failures.len(), jobs.len());
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n\n"));
}

/// Compiles a file and looks for its kernels in the code.
fn compile(
    compiler: &KernelCompiler,
    variant: &Variant,
    names: &BTreeSet<&str>,
    capability: (u32, u32),
) -> Result<(), String> {
    let image =
        compiler.compile(variant, capability).map_err(|error| format!("for {capability:?}: {error}"))?;
    match names.iter().find(|name| !contains(&image, &format!(".text.{name}\0"))) {
        Some(name) => Err(format!("{variant:?} for {capability:?} has no kernel {name}")),
        None => Ok(()),
    }
}

/// Each file with each set of definitions once, with the kernels that must be in it.
fn files() -> Vec<(Variant, BTreeSet<&'static str>)> {
    let mut files: Vec<(Variant, BTreeSet<&'static str>)> = Vec::new();
    for variant in kernel_sources() {
        let same = |known: &Variant| known.file == variant.file && known.defines == variant.defines;
        match files.iter_mut().find(|(known, _)| same(known)) {
            Some((_, names)) => names.extend([variant.name]),
            None => files.push((*variant, BTreeSet::from([variant.name]))),
        }
    }
    files
}

fn contains(image: &[u8], text: &str) -> bool {
    image.windows(text.len()).any(|window| window == text.as_bytes())
}

fn folders_with_nvrtc(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_dir() {
            folders_with_nvrtc(&path, found);
        } else if name.starts_with("libnvrtc.so") && !found.iter().any(|known| known == folder) {
            found.push(folder.to_owned());
        }
    }
}
