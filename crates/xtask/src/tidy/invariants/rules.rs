//! The invariants, what breaks them, and the places that are excused, each with its reason.

use super::mark::Mark::{self, Bytes, Exactly, Fallible, JsonObject, Name, Of, Text, WrittenOnly};

/// One invariant.
pub(super) struct Rule {
    /// As docs/ARCHITECTURE.md has it.
    pub(super) invariant: &'static str,
    /// The crates that it is for.
    pub(super) crates: Crates,
    /// What breaks it.
    pub(super) marks: &'static [Mark],
    /// What to do instead.
    pub(super) instead: &'static str,
    /// Places that have a mark for a reason.
    pub(super) places: &'static [Place],
}

/// Some of our crates.
pub(super) enum Crates {
    /// These.
    Only(&'static [&'static str]),
    /// All but these.
    AllBut(&'static [&'static str]),
}

impl Crates {
    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Crates::Only(names) => names.contains(&name),
            Crates::AllBut(names) => !names.contains(&name),
        }
    }
}

/// A file that is excused, a folder when it ends in a slash, or files of one name when it begins with a star.
pub(super) struct Place {
    pub(super) path: &'static str,
    pub(super) why: &'static str,
}

impl Place {
    pub(super) fn covers(&self, path: &str) -> bool {
        match self.path.strip_prefix('*') {
            Some(end) => path.ends_with(end),
            None if self.path.ends_with('/') => path.starts_with(self.path),
            None => path == self.path,
        }
    }
}

const fn at(path: &'static str, why: &'static str) -> Place {
    Place { path, why }
}

/// The invariants that are held by what crates name.
pub(super) const RULES: &[Rule] = &[LEDGER, ONE_WAY, FORMATS, MODELS, WIRE, SHAPES];

const LEDGER: Rule = Rule {
    invariant: "No bytes reach a device before its ledger has them",
    crates: Crates::AllBut(&[]),
    marks: &[
        Of("Pool", "allocate"),
        Of("pool", "allocate"),
        Of("HostPool", "allocate"),
        Of("PinnedMemory", "allocate"),
        Of("backend", "allocate"),
        Of("backend", "allocate_pinned"),
        Of("driver", "allocate"),
        Of("driver", "allocate_pinned"),
        Of("std", "alloc"),
        Name("map_anon"),
        Name("cuMemAlloc_v2"),
        Name("cuMemAllocAsync"),
        Name("cuMemAllocManaged"),
        Name("cuMemCreate"),
        Name("cuMemHostAlloc"),
    ],
    instead: "allocate through `Device`, which charges the ledger first",
    places: &[
        at("crates/device/src/device.rs", "the ledger has the bytes here before the backend is asked"),
        at("crates/device/src/stream.rs", "so it does for values between the parts of a lowered operation"),
        at("crates/device-cpu/src/backend.rs", "what `Device` calls"),
        at("crates/device-cpu/src/memory.rs", "the allocator of the host's memory"),
        at("crates/device-cuda/src/backend.rs", "what `Device` calls"),
        at("crates/device-cuda/src/pool.rs", "the allocator of a card's memory"),
        at("crates/device-cuda/src/memory.rs", "the allocator of pinned memory"),
        at("crates/device-cuda/src/driver.rs", "the driver's functions with their errors"),
        at("crates/device-cuda/src/raw.rs", "the driver's functions by their names"),
        at(
            "crates/device-cuda/src/measure.rs",
            "the bare library beside us in `bench ops`, where nothing else runs",
        ),
        at("crates/device-cuda/src/kernel.rs", "scratch, which is charged right beside it"),
        at(
            "crates/device-cuda/src/upload.rs",
            "a few pinned chunks that uploads share, taken once for each device",
        ),
    ],
};

const ONE_WAY: Rule = Rule {
    invariant: "Weight bytes travel only toward the computing device and are never copied back",
    crates: Crates::Only(&["residency", "patch"]),
    marks: &[Of("stream", "read"), Of("copies", "read"), Of("Stream", "read"), Fallible("to_vec")],
    instead: "work where the weight is, and stage it from its file again",
    places: &[at(
        "crates/residency/src/coding.rs",
        "the header of what the host has just coded in its own memory: only it says how long that is",
    )],
};

const FORMATS: Rule = Rule {
    invariant: "Only `checkpoint` knows a file format",
    crates: Crates::AllBut(&["checkpoint"]),
    marks: &[
        Text("data_offsets"),
        Text("__metadata__"),
        Text("tokenizer.ggml"),
        Text("general.architecture"),
        Text("general.alignment"),
        Text("comfy.gguf"),
        Bytes("GGUF"),
    ],
    instead: "let `checkpoint` read or write it, and offer what was meant as a typed value",
    places: &[at("crates/gantry/src/bench/step/stored.rs", "describes a file to `testkit`, which writes it")],
};

const MODELS: Rule = Rule {
    invariant: "`models` names no device kind, storage encoding or file format",
    crates: Crates::Only(&["models"]),
    marks: &[
        Name("Encoding"),
        Name("QuantFormat"),
        Name("DeviceKind"),
        Name("Ggml"),
        Name("Gguf"),
        Name("Safetensors"),
        Name("Format"),
        Text("ggml"),
        Text("gguf"),
        Text("GGUF"),
        Text("safetensors"),
    ],
    instead: "ask `checkpoint` or `tensor`, which know how weights are stored",
    places: &[
        at("*/family.rs", "the names of files that people download"),
        at("*/downloads.rs", "where those files are"),
    ],
};

const WIRE: Rule = Rule {
    invariant: "Only `server` knows wire JSON",
    crates: Crates::AllBut(&["server"]),
    marks: &[
        JsonObject,
        Exactly("exception_message"),
        Exactly("exception_type"),
        Exactly("traceback"),
        Exactly("current_inputs"),
        Exactly("current_outputs"),
        Exactly("node_errors"),
        Exactly("extra_info"),
        Exactly("execution_start"),
        Exactly("execution_cached"),
        Exactly("execution_error"),
        Exactly("execution_success"),
        Exactly("execution_interrupted"),
        Exactly("executing"),
        Exactly("progress_state"),
        Exactly("queue_remaining"),
        Exactly("status_str"),
        Exactly("display_node"),
        Exactly("real_node_id"),
    ],
    instead: "pass a typed value, and let `server` give it its keys",
    places: &[
        at(
            "crates/engine/src/sqlite/messages.rs",
            "the database keeps messages by the names they always had there",
        ),
        at("crates/gantry/src/bench/server/", "a client of the server"),
        at("crates/gantry/src/bench/served/", "a client of the server"),
    ],
};

/// What a value looks like as JSON is decided where it is sent or printed. Text that is kept (`engine`, `checkpoint`) and
/// the constants of workflows (`graph`) are formats of their own.
const SHAPES: Rule = Rule {
    invariant: "Only `server` knows wire JSON",
    crates: Crates::Only(&[
        "meta",
        "device",
        "tensor",
        "placement",
        "patch",
        "sampling",
        "residency",
        "models",
        "runtime",
        "nodes",
    ]),
    marks: &[WrittenOnly],
    instead: "give `server` a shape of it (crates/server/src/shapes.rs), which the command line prints as well",
    places: &[],
};
