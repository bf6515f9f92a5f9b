//! Compiling kernels with NVRTC, and keeping what was compiled in a folder.

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::nvrtc::sys::nvrtcProgram;
use sha2::{Digest, Sha256};

use crate::kernel::{ARCH_SPECIFIC, FAST_MATH, KernelFile};
use crate::raw::CompilerFunctions;

/// Why kernels could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The source is wrong; the log says where.
    #[error("{file} does not compile with [{options}]:\n{log}")]
    Source {
        /// The kernel file.
        file: &'static str,
        /// The compiler's options.
        options: String,
        /// The compiler's messages.
        log: String,
    },
    /// The compiler itself failed.
    #[error("{file}: {call} said: {reason}")]
    Compiler {
        /// The kernel file.
        file: &'static str,
        /// The function of NVRTC.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// The compiler is older than the card.
    #[error(
        "NVRTC {nvrtc} knows no architecture that a card of compute capability {capability} can run: install a newer CUDA toolkit or nvidia-cuda-nvrtc"
    )]
    Architecture {
        /// The compiler's version.
        nvrtc: String,
        /// The card's capability.
        capability: String,
    },
}

/// NVRTC with its cache.
#[derive(Clone)]
pub(crate) struct Compiler {
    nvrtc: Arc<Nvrtc>,
    cache: Option<PathBuf>,
}

impl Compiler {
    pub(crate) fn new(nvrtc: Arc<Nvrtc>, cache: Option<PathBuf>) -> Compiler {
        Compiler { nvrtc, cache }
    }

    pub(crate) fn nvrtc(&self) -> &Nvrtc {
        &self.nvrtc
    }

    /// Code for a card, from the cache if it is there.
    pub(crate) fn image(
        &self,
        file: KernelFile,
        defines: &[(&str, &str)],
        capability: (u32, u32),
    ) -> Result<Vec<u8>, CompileError> {
        let target = self.nvrtc.target(capability)?;
        let options = options(defines, &target);
        let source = file.source();
        let Some(folder) = &self.cache else {
            return self.nvrtc.compile(file.name(), &source, &options, target.form);
        };
        let path = folder.join(cache_name(&source, &options, self.nvrtc.version));
        if let Some(image) = read_cached(&path) {
            return Ok(image);
        }
        let image = self.nvrtc.compile(file.name(), &source, &options, target.form)?;
        // A cache that cannot be written only costs time at the next start.
        let _ = write_cached(&path, &image);
        Ok(image)
    }
}

/// What the code is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Machine code of one architecture.
    Cubin,
    /// Assembly that the driver translates, for cards newer than the compiler.
    Ptx,
}

/// What the code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Target {
    architecture: u32,
    form: Form,
}

/// The compiler's command line.
fn options(defines: &[(&str, &str)], target: &Target) -> Vec<String> {
    let has = |name: &str| defines.iter().any(|(key, _)| *key == name);
    let kind = if target.form == Form::Cubin { "sm" } else { "compute" };
    let own =
        if has(ARCH_SPECIFIC) && target.form == Form::Cubin && target.architecture >= 90 { "a" } else { "" };
    let mut options = vec![
        format!("--gpu-architecture={kind}_{}{own}", target.architecture),
        "--std=c++17".to_owned(),
        "-default-device".to_owned(),
    ];
    if has(FAST_MATH) {
        options.push("--use_fast_math".to_owned());
    }
    options.extend(defines.iter().map(|(key, value)| format!("-D{key}={value}")));
    options
}

/// The newest architecture among those a compiler knows that a card can run.
fn best_target(known: &[u32], capability: (u32, u32)) -> Option<Target> {
    let card = capability.0 * 10 + capability.1;
    let newest = |fits: &dyn Fn(u32) -> bool| known.iter().copied().filter(|a| *a <= card && fits(*a)).max();
    // Machine code runs on later cards of the same major capability; assembly on all later ones.
    let cubin = newest(&|a| a / 10 == capability.0);
    cubin
        .map(|architecture| Target { architecture, form: Form::Cubin })
        .or_else(|| newest(&|_| true).map(|architecture| Target { architecture, form: Form::Ptx }))
}

/// NVRTC's functions with checked results.
pub(crate) struct Nvrtc {
    raw: CompilerFunctions,
    version: (i32, i32),
    architectures: Vec<u32>,
}

impl Nvrtc {
    /// Asks a loaded library for its version and architectures.
    pub(crate) fn new(raw: CompilerFunctions) -> Result<Nvrtc, String> {
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the pointers are to locals of the types that the functions write.
        let codes = unsafe {
            [(raw.nvrtcVersion)(&mut major, &mut minor), (raw.nvrtcGetNumSupportedArchs)(&mut count)]
        };
        if codes != [0, 0] || count <= 0 {
            return Err(format!("it does not say its version and architectures (status {codes:?})"));
        }
        let mut known: Vec<c_int> = vec![0; count as usize];
        // SAFETY: the vector has room for the number of architectures that the library just gave.
        let code = unsafe { (raw.nvrtcGetSupportedArchs)(known.as_mut_ptr()) };
        if code != 0 {
            return Err(format!("it does not say its architectures (status {code})"));
        }
        let architectures = known.into_iter().filter_map(|a| u32::try_from(a).ok()).collect();
        Ok(Nvrtc { raw, version: (major, minor), architectures })
    }

    pub(crate) fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The architectures it can compile for, such as 90.
    pub(crate) fn architectures(&self) -> &[u32] {
        &self.architectures
    }

    fn target(&self, capability: (u32, u32)) -> Result<Target, CompileError> {
        best_target(&self.architectures, capability).ok_or_else(|| CompileError::Architecture {
            nvrtc: format!("{}.{}", self.version.0, self.version.1),
            capability: format!("{}.{}", capability.0, capability.1),
        })
    }

    fn check(&self, file: &'static str, call: &'static str, code: u32) -> Result<(), CompileError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the library returns a static string for every code.
        let reason = unsafe {
            let text = (self.raw.nvrtcGetErrorString)(code);
            if text.is_null() {
                format!("code {code}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(CompileError::Compiler { file, call, reason })
    }

    fn compile(
        &self,
        file: &'static str,
        source: &str,
        options: &[String],
        form: Form,
    ) -> Result<Vec<u8>, CompileError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| CompileError::Compiler {
                file,
                call: "nvrtcCreateProgram",
                reason: "the source or an option has a zero byte".into(),
            })
        };
        let (source, name) = (text(source)?, text(file)?);
        let arguments = options.iter().map(|o| text(o)).collect::<Result<Vec<_>, _>>()?;
        let arguments: Vec<*const c_char> = arguments.iter().map(|o| o.as_ptr()).collect();
        let mut program = Program { nvrtc: self, raw: null_mut() };
        // SAFETY: source and name are C strings that outlive the program; there are no headers.
        let created = unsafe {
            let none = std::ptr::null();
            (self.raw.nvrtcCreateProgram)(&mut program.raw, source.as_ptr(), name.as_ptr(), 0, none, none)
        };
        self.check(file, "nvrtcCreateProgram", created)?;
        // SAFETY: the program was just made; the options are C strings that live until the call returns.
        let code = unsafe {
            (self.raw.nvrtcCompileProgram)(program.raw, arguments.len() as c_int, arguments.as_ptr())
        };
        if code == COMPILATION_FAILED {
            return Err(CompileError::Source { file, options: options.join(" "), log: program.log() });
        }
        self.check(file, "nvrtcCompileProgram", code)?;
        match form {
            Form::Cubin => {
                program.output(file, "nvrtcGetCUBIN", self.raw.nvrtcGetCUBINSize, self.raw.nvrtcGetCUBIN)
            }
            Form::Ptx => program.output(file, "nvrtcGetPTX", self.raw.nvrtcGetPTXSize, self.raw.nvrtcGetPTX),
        }
    }
}

/// `NVRTC_ERROR_COMPILATION`.
const COMPILATION_FAILED: u32 = 6;

type SizeFunction = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> u32;
type BytesFunction = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> u32;

/// A program of NVRTC, destroyed when dropped.
struct Program<'a> {
    nvrtc: &'a Nvrtc,
    raw: nvrtcProgram,
}

impl Program<'_> {
    fn output(
        &self,
        file: &'static str,
        call: &'static str,
        size: SizeFunction,
        bytes: BytesFunction,
    ) -> Result<Vec<u8>, CompileError> {
        let mut len = 0;
        // SAFETY: the program is alive; the length is a local.
        self.nvrtc.check(file, call, unsafe { size(self.raw, &mut len) })?;
        let mut output = vec![0u8; len];
        // SAFETY: the buffer has the length that the library just gave.
        self.nvrtc.check(file, call, unsafe { bytes(self.raw, output.as_mut_ptr().cast()) })?;
        Ok(output)
    }

    fn log(&self) -> String {
        let raw = &self.nvrtc.raw;
        let log = self.output("", "nvrtcGetProgramLog", raw.nvrtcGetProgramLogSize, raw.nvrtcGetProgramLog);
        let log = log.unwrap_or_else(|error| error.to_string().into_bytes());
        String::from_utf8_lossy(&log).trim_end_matches(['\0', '\n']).to_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the program was made by this library and is used no more.
            unsafe { (self.nvrtc.raw.nvrtcDestroyProgram)(&mut self.raw) };
        }
    }
}

/// First bytes of a cached file; the checksum of the code follows.
const MAGIC: &[u8; 16] = b"gantry kernel 1\n";
const CHECKSUM: usize = 32;

/// The name under which code is kept: a hash of everything that it depends on.
fn cache_name(source: &str, options: &[String], nvrtc: (i32, i32)) -> String {
    let mut hash = Sha256::new();
    let version = format!("{}.{}", nvrtc.0, nvrtc.1);
    for part in [source, &options.join("\n"), &version, env!("CARGO_PKG_VERSION")] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    let hex: String = hash.finalize().iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    format!("{hex}.kernel")
}

/// Code from the cache; none if there is none, or if the file is not whole.
fn read_cached(path: &Path) -> Option<Vec<u8>> {
    let bytes = fs::read(path).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (checksum, image) = rest.split_at_checked(CHECKSUM)?;
    (!image.is_empty() && Sha256::digest(image).as_slice() == checksum).then(|| image.to_vec())
}

/// Puts code into the cache, so that no one ever reads half a file.
fn write_cached(path: &Path, image: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    disk::remove_stale(folder);
    disk::write(path, &[MAGIC.as_slice(), Sha256::digest(image).as_slice(), image].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gantry-cuda-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    #[test]
    fn cached_code_comes_back_and_damage_is_noticed() {
        let folder = folder("cache");
        let path = folder.join("a.kernel");
        assert_eq!(read_cached(&path), None);
        write_cached(&path, b"code").unwrap();
        assert_eq!(read_cached(&path).as_deref(), Some(&b"code"[..]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside the file");

        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert_eq!(read_cached(&path), None, "a changed byte");
        fs::write(&path, &bytes[..20]).unwrap();
        assert_eq!(read_cached(&path), None, "a cut file");
        fs::write(&path, b"something else").unwrap();
        assert_eq!(read_cached(&path), None, "a foreign file");
        write_cached(&path, b"new").unwrap();
        assert_eq!(read_cached(&path).as_deref(), Some(&b"new"[..]), "and it is written again");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_cache_name_depends_on_everything() {
        let options = |o: &str| vec![o.to_owned()];
        let base = cache_name("source", &options("-DA=1"), (13, 0));
        assert_eq!(base, cache_name("source", &options("-DA=1"), (13, 0)));
        for other in [
            cache_name("source2", &options("-DA=1"), (13, 0)),
            cache_name("source", &options("-DA=2"), (13, 0)),
            cache_name("source", &options("-DA=1"), (13, 1)),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_card_gets_the_best_code_it_can_run() {
        let known = [75, 80, 86, 90, 100, 120];
        let cubin = |architecture| Some(Target { architecture, form: Form::Cubin });
        assert_eq!(best_target(&known, (9, 0)), cubin(90));
        assert_eq!(best_target(&known, (8, 9)), cubin(86));
        assert_eq!(best_target(&known, (12, 1)), cubin(120));
        assert_eq!(
            best_target(&known, (13, 0)),
            Some(Target { architecture: 120, form: Form::Ptx }),
            "a card newer than the compiler gets assembly"
        );
        assert_eq!(best_target(&known, (6, 1)), None);
    }

    #[test]
    fn definitions_steer_the_compiler() {
        let target = Target { architecture: 90, form: Form::Cubin };
        let plain = options(&[("T", "float")], &target);
        assert!(
            plain.contains(&"--gpu-architecture=sm_90".to_owned()) && plain.contains(&"-DT=float".to_owned())
        );
        assert!(!plain.contains(&"--use_fast_math".to_owned()));
        let special = options(&[(FAST_MATH, "1"), (ARCH_SPECIFIC, "1")], &target);
        assert!(special.contains(&"--gpu-architecture=sm_90a".to_owned()));
        assert!(special.contains(&"--use_fast_math".to_owned()));
    }
}
