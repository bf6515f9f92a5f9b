//! Finding and loading NVIDIA's libraries at run time.
//!
//! Nothing here is needed to build or to start: a machine without a driver gets one calm sentence.
//! Libraries are loaded by path and never unloaded, because they keep threads and exit handlers.

use std::fmt;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

use crate::compile::Nvrtc;
use crate::driver::Driver;
use crate::raw::{BlasFunctions, CompilerFunctions, DnnFunctions, DriverFunctions, SensorFunctions};

/// Why there is no CUDA device, in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// What is missing and how to get it.
    pub reason: String,
}

impl Unavailable {
    pub(crate) fn new(reason: impl Into<String>) -> Unavailable {
        // Library loaders answer in several lines; a note has one.
        let reason = reason.into().split_whitespace().collect::<Vec<_>>().join(" ");
        Unavailable { reason }
    }
}

/// The libraries that are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lib {
    Driver,
    Compiler,
    Blas,
    Dnn,
}

impl Lib {
    /// File names, best first, for a driver that supports CUDA up to `newest` (its major version).
    /// Newer libraries than the driver do not work, older ones do.
    pub(crate) fn file_names(self, newest: u32) -> Vec<String> {
        let majors = (OLDEST_MAJOR..=newest.min(NEWEST_MAJOR)).rev();
        if cfg!(windows) {
            return match self {
                Lib::Driver => vec!["nvcuda.dll".into()],
                Lib::Compiler => majors.map(|major| format!("nvrtc64_{major}0_0.dll")).collect(),
                Lib::Blas => majors.map(|major| format!("cublasLt64_{major}.dll")).collect(),
                Lib::Dnn => vec![format!("cudnn64_{DNN_MAJOR}.dll")],
            };
        }
        let versioned = |stem: &str| {
            let names = majors.map(|major| format!("lib{stem}.so.{major}"));
            names.chain([format!("lib{stem}.so")]).collect()
        };
        match self {
            Lib::Driver => vec!["libcuda.so.1".into(), "libcuda.so".into()],
            Lib::Compiler => versioned("nvrtc"),
            Lib::Blas => versioned("cublasLt"),
            Lib::Dnn => vec![format!("libcudnn.so.{DNN_MAJOR}")],
        }
    }

    /// What it is called and how to get it, for a driver of this major version.
    fn advice(self, newest: u32) -> String {
        let suffix = if newest == 12 { "-cu12" } else { "" };
        let get = |name: &str, package: &str| {
            format!(
                "{name}: install the CUDA toolkit, or `pip install {package}{suffix}` and set CUDA_PATH to the \
                 environment's folder"
            )
        };
        match self {
            Lib::Driver => "the NVIDIA driver".into(),
            Lib::Compiler => get("NVRTC", "nvidia-cuda-nvrtc"),
            Lib::Blas => get("cuBLASLt", "nvidia-cublas"),
            Lib::Dnn => format!("cuDNN: `pip install nvidia-cudnn-cu{newest}`"),
        }
    }
}

/// The oldest major version of CUDA whose libraries are tried.
const OLDEST_MAJOR: u32 = 12;
/// The newest major version of CUDA whose libraries are tried.
pub(crate) const NEWEST_MAJOR: u32 = 14;

/// The major version of cuDNN that is used; its graphs are the same in all of it.
const DNN_MAJOR: usize = 9;

/// The folders that are searched, in order, after the loader's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct SearchPath {
    folders: Vec<PathBuf>,
}

/// Where toolkits and drivers usually are.
#[cfg(not(windows))]
const SYSTEM_ROOTS: [&str; 8] = [
    "/usr/local/cuda",
    "/opt/cuda",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib",
    "/run/opengl-driver/lib",
];
#[cfg(windows)]
const SYSTEM_ROOTS: [&str; 1] = ["C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA"];

/// Folders of a toolkit, a Python environment or its packages that hold libraries, under a root.
const BELOW_ROOT: [&str; 16] = [
    "",
    "lib64",
    "lib",
    "bin",
    "bin/x64",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "nvidia/cu13/lib",
    "nvidia/cu12/lib",
    "nvidia/cuda_nvrtc/lib",
    "nvidia/cublas/lib",
    "nvidia/cuda_nvrtc/bin",
    "nvidia/cublas/bin",
    "nvidia/cudnn/lib",
    "nvidia/cudnn/bin",
    "torch/lib",
];

impl SearchPath {
    /// Everything under the given roots, then the usual places.
    pub(crate) fn new(roots: &[PathBuf]) -> SearchPath {
        let mut path = SearchPath::default();
        roots.iter().for_each(|root| path.add_root(root));
        for root in SYSTEM_ROOTS.iter().map(Path::new) {
            path.add_root(root);
            // Toolkits of several versions stand side by side: /usr/local/cuda-12.8, CUDA\v12.8.
            let (parent, prefix) = if cfg!(windows) { (Some(root), "v") } else { (root.parent(), "cuda-") };
            let mut versions: Vec<_> = parent.into_iter().flat_map(|p| sub_folders(p, prefix)).collect();
            versions.sort();
            versions.iter().rev().for_each(|root| path.add_root(root));
        }
        path
    }

    /// A root, and the site-packages of Python if it is an environment.
    fn add_root(&mut self, root: &Path) {
        let mut roots = vec![root.to_owned(), root.join("Lib/site-packages")];
        for lib in ["lib", "lib64"] {
            for python in sub_folders(&root.join(lib), "python3") {
                roots.extend([python.join("site-packages"), python.join("dist-packages")]);
            }
        }
        for folder in roots.iter().flat_map(|root| BELOW_ROOT.map(|below| root.join(below))) {
            if folder.is_dir() && !self.folders.contains(&folder) {
                self.folders.push(folder);
            }
        }
    }

    /// The files with one of these names, in the order of the names, then of the folders.
    pub(crate) fn files(&self, names: &[String]) -> Vec<PathBuf> {
        let all = names.iter().flat_map(|name| self.folders.iter().map(move |folder| folder.join(name)));
        all.filter(|file| file.is_file()).collect()
    }
}

/// Folders inside `parent` whose names start so.
fn sub_folders(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let named = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix)) && path.is_dir()
    };
    entries.filter_map(Result::ok).map(|entry| entry.path()).filter(named).collect()
}

/// Opens a library. It stays loaded.
fn open(file: &Path) -> Result<ManuallyDrop<Library>, libloading::Error> {
    // SAFETY: these are NVIDIA's libraries by name; their initialisers have no requirements.
    unsafe { Library::new(file) }.map(ManuallyDrop::new)
}

/// Tries a library by each name: first as the loader finds it, then in each folder. The first that
/// `accept` takes is used; what the others lacked is told if none is.
fn load<T>(
    lib: Lib,
    path: &SearchPath,
    newest: u32,
    accept: impl Fn(&Library) -> Result<T, String>,
) -> Result<T, Unavailable> {
    let names = lib.file_names(newest);
    let mut refused = Vec::new();
    let by_loader = names.iter().map(PathBuf::from);
    for file in by_loader.chain(path.files(&names)) {
        if lib == Lib::Compiler {
            load_beside(&file, "nvrtc-builtins");
        }
        let found = open(&file).map_err(|error| error.to_string());
        let by_path = file.is_absolute();
        match found.and_then(|library| accept(&library)) {
            Ok(loaded) => return Ok(loaded),
            // A name that the loader does not know is no news; a file that does not work is.
            Err(reason) if by_path => refused.push(format!("{}: {reason}", file.display())),
            Err(_) => {}
        }
    }
    let tried = match refused.first() {
        Some(first) => format!("; found but not usable: {first}"),
        None => String::new(),
    };
    Err(Unavailable::new(format!("no CUDA: missing {}{tried}", lib.advice(newest))))
}

/// NVRTC opens its built-ins by name only, so those beside it are loaded first.
fn load_beside(file: &Path, stem: &str) {
    let Some(folder) = file.parent().filter(|_| file.is_absolute()) else { return };
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let library = name.contains(".so") || name.ends_with(".dll");
        if name.contains(stem) && library && !name.contains(".alt") {
            // What does not load here is reported by the compiler itself when it needs it.
            let _ = open(&path);
        }
    }
}

/// The driver, ready to use.
pub(crate) fn load_driver(path: &SearchPath) -> Result<Driver, Unavailable> {
    let driver = load(Lib::Driver, path, NEWEST_MAJOR, |library| {
        DriverFunctions::load(library).map_err(|error| error.to_string())
    })
    .map_err(|missing| {
        let absent = missing.reason.contains("not usable");
        if absent { missing } else { Unavailable::new("no CUDA: this machine has no NVIDIA driver") }
    })?;
    let driver = Driver::new(driver);
    driver
        .init()
        .map_err(|fault| Unavailable::new(format!("no CUDA: the driver does not start: {fault}")))?;
    Ok(driver)
}

/// NVML, started; nothing where it is not there, for it is not needed.
pub(crate) fn load_sensors() -> Option<SensorFunctions> {
    let names = if cfg!(windows) { &["nvml.dll"][..] } else { &["libnvidia-ml.so.1", "libnvidia-ml.so"] };
    let library = names.iter().find_map(|name| open(Path::new(name)).ok())?;
    let functions = SensorFunctions::load(&library).ok()?;
    // SAFETY: it takes nothing and may be called any number of times.
    let status = unsafe { (functions.nvmlInit_v2)() };
    (status == 0).then_some(functions)
}

/// NVRTC, not newer than the driver's CUDA (major version).
pub(crate) fn load_compiler(path: &SearchPath, newest: u32) -> Result<Arc<Nvrtc>, Unavailable> {
    load(Lib::Compiler, path, newest, |library| {
        let raw = CompilerFunctions::load(library).map_err(|error| error.to_string())?;
        let nvrtc = Nvrtc::new(raw)?;
        not_newer("NVRTC", nvrtc.version().0.max(0) as u32, newest)?;
        Ok(Arc::new(nvrtc))
    })
}

/// cuBLASLt, not newer than the driver's CUDA (major version).
pub(crate) fn load_blas(path: &SearchPath, newest: u32) -> Result<BlasFunctions, Unavailable> {
    load(Lib::Blas, path, newest, |library| {
        let raw = BlasFunctions::load(library).map_err(|error| error.to_string())?;
        // SAFETY: the function takes nothing and needs no handle.
        let version = unsafe { (raw.cublasLtGetVersion)() };
        not_newer("cuBLASLt", (version / 10_000) as u32, newest)?;
        Ok(raw)
    })
}

/// cuDNN.
pub(crate) fn load_dnn(path: &SearchPath, newest: u32) -> Result<DnnFunctions, Unavailable> {
    load(Lib::Dnn, path, newest, |library| {
        let raw = DnnFunctions::load(library).map_err(|error| error.to_string())?;
        // SAFETY: the function takes nothing and needs no handle.
        let version = unsafe { (raw.cudnnGetVersion)() };
        if version / 10_000 != DNN_MAJOR {
            return Err(format!("cuDNN {version} is not of version {DNN_MAJOR}"));
        }
        Ok(raw)
    })
}

fn not_newer(what: &str, major: u32, newest: u32) -> Result<(), String> {
    if major <= newest {
        return Ok(());
    }
    Err(format!("{what} {major} needs a newer driver: this one supports CUDA up to {newest}"))
}

impl fmt::Display for SearchPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folders: Vec<_> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        f.write_str(&folders.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gantry-cuda-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn put(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, b"not a library").unwrap();
    }

    #[test]
    #[cfg(not(windows))]
    fn libraries_are_found_in_toolkits_and_python_environments() {
        let root = folder("search");
        let toolkit = root.join("toolkit/lib64/libnvrtc.so.12");
        let package = root.join("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
        let older = root.join("venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
        [&toolkit, &package, &older].into_iter().for_each(|file| put(file));
        put(&root.join("venv/lib/python3.12/elsewhere/libnvrtc.so.13"));

        let path = SearchPath::new(&[root.join("toolkit"), root.join("venv")]);
        let found = |newest| {
            let files = path.files(&Lib::Compiler.file_names(newest));
            files.into_iter().filter(|file| file.starts_with(&root)).collect::<Vec<_>>()
        };
        assert_eq!(found(13), [package, toolkit.clone(), older.clone()], "newest first, then in order");
        assert_eq!(found(12), [toolkit, older], "nothing newer than the driver");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    #[cfg(not(windows))]
    fn a_broken_library_is_named_in_one_line() {
        let root = folder("broken");
        put(&root.join("libcublasLt.so.13"));
        let path = SearchPath { folders: vec![root.clone()] };
        let Err(missing) = load_blas(&path, 13) else {
            fs::remove_dir_all(&root).unwrap();
            return; // This machine has the real library where the loader finds it.
        };
        let text = missing.to_string();
        assert!(
            text.contains("cuBLASLt") && text.contains("libcublasLt.so.13") && !text.contains('\n'),
            "{text}"
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn newer_libraries_than_the_driver_are_refused() {
        assert!(not_newer("NVRTC", 12, 13).is_ok());
        assert!(not_newer("NVRTC", 13, 12).unwrap_err().contains("newer driver"));
    }
}
