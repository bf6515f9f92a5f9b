//! ComfyUI's flags that mean nothing here. Scripts that start ComfyUI have them, so they are taken; each is named at
//! the start, with what holds here instead, because a flag that silently does nothing helps nobody.

use std::ffi::OsString;

/// A flag of ComfyUI, what may follow it, and what holds here.
struct Unused {
    flag: &'static str,
    values: Values,
    here: &'static str,
}

/// What follows a flag.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Values {
    None,
    One,
    AtMostOne,
    Many,
}

const fn bare(flag: &'static str, here: &'static str) -> Unused {
    Unused { flag, values: Values::None, here }
}

const PRECISION: &str = "weights compute in the device's own type; a loader's weight_dtype says otherwise";
const MEMORY: &str = "the planner places each model; say virtual_vram_gb or an allocation in its loader";
const ATTENTION: &str = "the fastest attention that the device has is used";
const PACKS: &str = "there are no Python node packs";

const UNUSED: &[Unused] = &[
    bare("--auto-launch", "no browser is opened"),
    bare("--disable-auto-launch", "no browser is opened"),
    bare("--cuda-malloc", MEMORY),
    bare("--disable-cuda-malloc", MEMORY),
    bare("--force-fp32", PRECISION),
    bare("--force-fp16", PRECISION),
    bare("--fp32-unet", PRECISION),
    bare("--fp64-unet", PRECISION),
    bare("--bf16-unet", PRECISION),
    bare("--fp16-unet", PRECISION),
    bare("--fp8_e4m3fn-unet", PRECISION),
    bare("--fp8_e5m2-unet", PRECISION),
    bare("--fp8_e8m0fnu-unet", PRECISION),
    bare("--fp16-vae", PRECISION),
    bare("--fp32-vae", PRECISION),
    bare("--bf16-vae", PRECISION),
    bare("--cpu-vae", "VAELoaderMultiGPU has a device input"),
    bare("--fp8_e4m3fn-text-enc", PRECISION),
    bare("--fp8_e5m2-text-enc", PRECISION),
    bare("--fp16-text-enc", PRECISION),
    bare("--fp32-text-enc", PRECISION),
    bare("--bf16-text-enc", PRECISION),
    bare("--force-channels-last", "layouts are the kernels' own"),
    bare("--supports-fp8-compute", PRECISION),
    bare("--use-split-cross-attention", ATTENTION),
    bare("--use-quad-cross-attention", ATTENTION),
    bare("--use-pytorch-cross-attention", ATTENTION),
    bare("--use-sage-attention", ATTENTION),
    bare("--use-flash-attention", ATTENTION),
    bare("--disable-xformers", ATTENTION),
    bare("--force-upcast-attention", ATTENTION),
    bare("--dont-upcast-attention", ATTENTION),
    bare("--enable-manager", PACKS),
    bare("--disable-manager-ui", PACKS),
    bare("--enable-manager-legacy-ui", PACKS),
    bare("--gpu-only", MEMORY),
    bare("--highvram", MEMORY),
    bare("--normalvram", MEMORY),
    bare("--lowvram", MEMORY),
    bare("--novram", MEMORY),
    Unused { flag: "--reserve-vram", values: Values::One, here: MEMORY },
    Unused { flag: "--async-offload", values: Values::AtMostOne, here: "copies always run beside computing" },
    bare("--disable-async-offload", "copies always run beside computing"),
    bare("--force-non-blocking", "copies always run beside computing"),
    Unused {
        flag: "--default-hashing-function",
        values: Values::One,
        here: "files are compared byte by byte",
    },
    bare("--disable-smart-memory", MEMORY),
    bare("--deterministic", "results are the same every time"),
    bare("--disable-pinned-memory", MEMORY),
    bare("--mmap-torch-files", "every file is mapped"),
    bare("--disable-mmap", "files are mapped"),
    bare("--dont-print-server", "the log is short"),
    bare("--quick-test-for-ci", "the server goes on"),
    bare("--windows-standalone-build", "no browser is opened"),
    bare("--disable-all-custom-nodes", PACKS),
    Unused { flag: "--whitelist-custom-nodes", values: Values::Many, here: PACKS },
    bare("--log-stdout", "the log goes to the terminal's error stream"),
    Unused {
        flag: "--front-end-version",
        values: Values::One,
        here: "nothing is downloaded; see --front-end-root",
    },
    Unused { flag: "--comfy-api-base", values: Values::One, here: "there are no paid API nodes" },
    Unused { flag: "--database-url", values: Values::One, here: "see --database" },
    Unused { flag: "--cuda-device", values: Values::One, here: "see --compute" },
    Unused { flag: "--default-device", values: Values::One, here: "see --compute" },
    Unused { flag: "--directml", values: Values::AtMostOne, here: "only the CPU and NVIDIA cards are used" },
    Unused {
        flag: "--oneapi-device-selector",
        values: Values::One,
        here: "only the CPU and NVIDIA cards are used",
    },
    bare("--disable-ipex-optimize", "only the CPU and NVIDIA cards are used"),
    Unused {
        flag: "--cache-ram",
        values: Values::AtMostOne,
        here: "outputs of nodes go when memory is nearly full",
    },
    bare("--multi-user", "there is one user"),
];

/// ComfyUI's flag with which all that follows it is traded for speed, or everything if nothing follows.
const FAST: &str = "--fast";
/// What of it there is here.
const KNOWN_FAST: &str = "fp8_matrix_mult";

/// What of `--fast` and what follows it is done here, and a line on the rest.
fn known_fast(asked: &[String], kept: &mut Vec<OsString>, notes: &mut Vec<String>) {
    if asked.is_empty() || asked.iter().any(|way| way == KNOWN_FAST) {
        kept.extend([FAST, KNOWN_FAST].map(OsString::from));
    }
    let others: Vec<&str> = asked.iter().map(String::as_str).filter(|way| *way != KNOWN_FAST).collect();
    if !others.is_empty() {
        notes.push(format!("{FAST} {} does nothing here: {KNOWN_FAST} does", others.join(" ")));
    }
}

/// The command line without those flags if it is `serve`'s, and a line for each that was there.
pub(crate) fn without_unused(args: impl Iterator<Item = OsString>) -> (Vec<OsString>, Vec<String>) {
    let args: Vec<OsString> = args.collect();
    if args.get(1).is_none_or(|command| command != "serve") {
        return (args, Vec::new());
    }
    let (mut kept, mut notes) = (Vec::new(), Vec::new());
    let mut rest = args.into_iter().peekable();
    while let Some(arg) = rest.next() {
        let text = arg.to_string_lossy().into_owned();
        let (name, has_value) = text.split_once('=').map_or((text.as_str(), false), |(name, _)| (name, true));
        if name == FAST {
            let mut asked: Vec<String> =
                text.split_once('=').map(|(_, way)| way.to_owned()).into_iter().collect();
            while !has_value && let Some(way) = rest.next_if(|next| !next.to_string_lossy().starts_with('-'))
            {
                asked.push(way.to_string_lossy().into_owned());
            }
            known_fast(&asked, &mut kept, &mut notes);
            continue;
        }
        let Some(unused) = UNUSED.iter().find(|unused| unused.flag == name) else {
            kept.push(arg);
            continue;
        };
        let most = match unused.values {
            _ if has_value => 0,
            Values::None => 0,
            Values::One | Values::AtMostOne => 1,
            Values::Many => usize::MAX,
        };
        let mut taken = 0;
        while taken < most && rest.next_if(|next| !next.to_string_lossy().starts_with("--")).is_some() {
            taken += 1;
        }
        notes.push(format!("{name} does nothing here: {}", unused.here));
    }
    (kept, notes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(line: &str) -> (String, usize) {
        let args = line.split_whitespace().map(OsString::from);
        let (kept, notes) = without_unused(args);
        let kept: Vec<_> = kept.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
        (kept.join(" "), notes.len())
    }

    #[test]
    fn flags_go_with_their_values_and_are_named() {
        assert_eq!(cut("gantry serve --lowvram --port 1"), ("gantry serve --port 1".into(), 1));
        assert_eq!(cut("gantry serve --reserve-vram 2 --cpu"), ("gantry serve --cpu".into(), 1));
        assert_eq!(cut("gantry serve --fast fp16 cublas --port 1"), ("gantry serve --port 1".into(), 1));
        let fast = "gantry serve --fast fp8_matrix_mult --port 1";
        assert_eq!(cut(fast), (fast.into(), 0));
        assert_eq!(cut("gantry serve --fast --port 1"), (fast.into(), 0), "alone it means all ways");
        assert_eq!(cut("gantry serve --fast autotune fp8_matrix_mult --port 1"), (fast.into(), 1));
        assert_eq!(cut("gantry serve --fast=fp8_matrix_mult --port 1"), (fast.into(), 0));
        assert_eq!(cut("gantry serve --async-offload --port=1"), ("gantry serve --port=1".into(), 1));
        assert_eq!(cut("gantry serve --reserve-vram=2 --port 1"), ("gantry serve --port 1".into(), 1));
        assert_eq!(
            cut("gantry demo --lowvram"),
            ("gantry demo --lowvram".into(), 0),
            "only serve takes them"
        );
    }
}
