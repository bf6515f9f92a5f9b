//! The rows that are measured: what is asked for, and what came of it.

use anyhow::Result;
use meta::DeviceId;
use models::diffusion::{DiffusionFamily, ReleasedModel};
use serde::Serialize;
use serde_json::Value;

use super::client::{Client, HostMemory, Job, whole};
use super::workflow::{Drawing, prompt};

/// The guidances that rows are measured with: one evaluation a step, and two.
const PLAIN: &[f64] = &[1.0];
const BOTH: &[f64] = &[1.0, 3.5];
/// The word of the allocation language that says how a block on another accelerator is used.
const STREAM: &str = "remote=stream";
const IN_PLACE: &str = "remote=inplace";

/// How a model is asked for.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) allocation: String,
    pub(super) weight_dtype: &'static str,
    pub(super) lora: bool,
    pub(super) cfgs: &'static [f64],
    /// The case whose result must have the same bits.
    pub(super) reference: &'static str,
}

/// The case with everything on one device.
pub(super) const RESIDENT: &str = "resident";

/// The case with products of 8 bits, whose bits are not those of its reference; how far it is from that is told.
const FP8_PRODUCTS: &str = "resident, fp8 products";

/// What is measured on one device.
pub(super) fn one_device(compute: DeviceId) -> Vec<Case> {
    let case = |name: &'static str, offload: u32| Case {
        name,
        allocation: match offload {
            0 => String::new(),
            percent => format!("{compute},{}%;cpu,{percent}%", 100 - percent),
        },
        weight_dtype: "default",
        lora: false,
        cfgs: BOTH,
        reference: RESIDENT,
    };
    let lora = |name, offload, reference| Case { lora: true, cfgs: PLAIN, reference, ..case(name, offload) };
    let fp8 = |name, offload, reference| Case {
        weight_dtype: "fp8_e4m3fn",
        cfgs: PLAIN,
        reference,
        ..case(name, offload)
    };
    let (lora_here, fp8_here) = ("resident, LoRA", "resident, fp8");
    let mut cases = vec![case(RESIDENT, 0), lora(lora_here, 0, lora_here), fp8(fp8_here, 0, fp8_here)];
    if compute != DeviceId::CPU {
        let of_8_bits = Case { weight_dtype: "fp8_e4m3fn_fast", ..fp8(FP8_PRODUCTS, 0, fp8_here) };
        cases.extend([
            of_8_bits,
            case("half offloaded", 50),
            case("all offloaded", 100),
            lora("all offloaded, LoRA", 100, lora_here),
            fp8("all offloaded, fp8", 100, fp8_here),
        ]);
    }
    cases
}

/// What is measured with a server that codes weights where it predicts shorter steps (`--coded auto`).
pub(super) fn coded(compute: DeviceId) -> Vec<Case> {
    let case = |(name, offload): (&'static str, u32)| Case {
        name,
        allocation: format!("{compute},{}%;cpu,{offload}%", 100 - offload),
        weight_dtype: "default",
        lora: false,
        cfgs: BOTH,
        reference: RESIDENT,
    };
    [("half offloaded, coded", 50), ("all offloaded, coded", 100)].map(case).into()
}

/// All of a model on a device that is too small for it.
pub(super) fn kept_coded() -> Case {
    Case {
        name: "resident, coded",
        allocation: String::new(),
        weight_dtype: "default",
        lora: false,
        cfgs: PLAIN,
        reference: RESIDENT,
    }
}

/// What is measured on two devices of one kind.
pub(super) fn two_devices([first, second]: [DeviceId; 2]) -> Vec<Case> {
    let shares = format!("{first},50%;{second},50%");
    let case = |name: &'static str, more: &str| Case {
        name,
        allocation: if more.is_empty() { shares.clone() } else { format!("{shares};{more}") },
        weight_dtype: "default",
        lora: false,
        cfgs: PLAIN,
        reference: RESIDENT,
    };
    vec![
        case("two devices, as planned", ""),
        case("two devices, streamed", STREAM),
        case("two devices, in place", IN_PLACE),
    ]
}

impl Case {
    /// The name of the row with a guidance.
    pub(super) fn row_name(&self, cfg: f64) -> String {
        if cfg == 1.0 { self.name.to_owned() } else { format!("{}, cfg {cfg}", self.name) }
    }
}

/// One row, measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) name: String,
    #[serde(skip)]
    pub(super) case: &'static str,
    pub(super) allocation: String,
    pub(super) weight_dtype: &'static str,
    pub(super) lora: bool,
    pub(super) cfg: f64,
    pub(super) placed: Placed,
    /// The job that loaded the model, or the first with this guidance.
    pub(super) first: Job,
    pub(super) second: Job,
    /// What the step of the second job cannot be shorter than, and why.
    pub(super) bound_s: Option<f64>,
    pub(super) bound_is: &'static str,
    pub(super) over_bound: Option<f64>,
    /// The prediction over what was measured, in the first and in the second job.
    pub(super) predicted_over_measured: [Option<f64>; 2],
    /// The host before the model was loaded, and after the jobs.
    pub(super) host_before: HostMemory,
    pub(super) host_after: HostMemory,
    /// What the compute device has in use after the jobs, and the most that it had.
    pub(super) device_used_bytes: u64,
    pub(super) device_peak_bytes: u64,
    /// Whether the second job saved the same bits as the reference's.
    pub(super) same_bits: Option<bool>,
    /// How many weights had products of 8 bits, and how far the latent is from the reference's then.
    pub(super) fp8_products: u64,
    pub(super) error_of_products: Option<f64>,
}

/// Where a loaded model's bytes are, by its plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Placed {
    /// Computed where they live, on the compute device.
    pub(super) resident_bytes: u64,
    /// Copied to the compute device in every step; the bytes that travel, where they are coded.
    pub(super) streamed_bytes: u64,
    /// What is decoded in every step, counted decoded.
    pub(super) decoded_bytes: u64,
    /// Computed where they live, on another device.
    pub(super) in_place_bytes: u64,
    /// The slots that streamed blocks pass through.
    pub(super) ring_bytes: u64,
    /// In words.
    pub(super) mode: &'static str,
}

impl Placed {
    /// Reads what `/gantry/models` says of a model.
    pub(super) fn read(model: &Value) -> Placed {
        let plan = &model["plan"];
        let compute = &plan["compute"];
        let mut placed = Placed::default();
        for block in plan["blocks"].as_array().into_iter().flatten() {
            let decoded = whole(&block["bytes"]);
            let bytes = block["coded_bytes"].as_u64().unwrap_or(decoded);
            if block["coded_bytes"].is_u64() {
                placed.decoded_bytes += decoded;
            }
            let sum = match () {
                () if block["mode"] == "streamed" => &mut placed.streamed_bytes,
                () if block["runs_on"] == *compute => &mut placed.resident_bytes,
                () => &mut placed.in_place_bytes,
            };
            *sum += bytes;
        }
        let ring = &plan["ring"];
        placed.ring_bytes = whole(&ring["slots"]) * whole(&ring["slot_bytes"]) + whole(&ring["room_bytes"]);
        placed.mode = match (placed.streamed_bytes > 0, placed.in_place_bytes > 0) {
            (false, false) => "resident",
            (true, false) => "streamed",
            (false, true) => "in place",
            (true, true) => "streamed and in place",
        };
        placed
    }
}

/// Runs a case: two jobs of so many steps for each guidance, from a server with nothing loaded.
pub(super) fn measure(
    client: &Client<'_>,
    compute: DeviceId,
    case: &Case,
    (shapes, steps): ((&DiffusionFamily, &ReleasedModel), usize),
) -> Result<Vec<Row>> {
    client.free_all()?;
    let compute = compute.to_string();
    let host_before = client.host_memory()?;
    let mut rows = Vec::new();
    for cfg in case.cfgs {
        let drawing = Drawing {
            compute: &compute,
            allocation: &case.allocation,
            virtual_vram_gb: 0.0,
            weight_dtype: case.weight_dtype,
            lora: case.lora,
            cfg: *cfg,
            steps,
            seed: 1,
        };
        let first = client.run(&prompt(&drawing, shapes))?;
        let second = client.run(&prompt(&Drawing { seed: 2, ..drawing }, shapes))?;
        let device = client.device(&compute)?;
        let fp8_products = second.fp8_products;
        rows.push(Row {
            name: case.row_name(*cfg),
            case: case.name,
            allocation: case.allocation.clone(),
            weight_dtype: case.weight_dtype,
            lora: case.lora,
            cfg: *cfg,
            placed: Placed::read(&client.model()?),
            predicted_over_measured: [first.predicted_over_measured(), second.predicted_over_measured()],
            first,
            second,
            bound_s: None,
            bound_is: "",
            over_bound: None,
            host_before,
            host_after: client.host_memory()?,
            device_used_bytes: whole(&device["used_bytes"]),
            device_peak_bytes: whole(&device["peak_bytes"]),
            same_bits: None,
            fp8_products,
            error_of_products: None,
        });
    }
    Ok(rows)
}

/// What bounds are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// A resident step without a server, in the same run.
    pub(super) bench_step_s: f64,
    /// Bytes per second to the device; none for the CPU.
    pub(super) link: Option<f64>,
    /// Bytes per second that the device decodes, counted decoded.
    pub(super) decoding: Option<f64>,
}

/// Says what each row cannot be faster than, and compares its bits with its reference's.
pub(super) fn compare(rows: &mut [Row], cases: &[Case], bounds: Bounds) {
    let done = rows.to_vec();
    let find = |case: &str, cfg: f64| done.iter().find(|row| row.case == case && row.cfg == cfg);
    for row in rows {
        let Some(case) = cases.iter().find(|case| case.name == row.case) else { continue };
        // A LoRA is bound by the model without it; a cast model by itself.
        let plain = if case.lora { RESIDENT } else { case.reference };
        let resident = find(plain, row.cfg).map(|row| row.second.step_s);
        // What is decoded keeps the device from computing meanwhile.
        let decoding = bounds.decoding.map_or(0.0, |rate| row.placed.decoded_bytes as f64 / rate);
        let resident = resident.map(|step| step + decoding);
        let one = find(plain, 1.0).map(|row| row.second.step_s);
        // Only what comes from the host comes over the link that was measured.
        let link = bounds.link.filter(|_| case.allocation.contains("cpu"));
        let stream = link.map(|link| row.placed.streamed_bytes as f64 / link);
        (row.bound_s, row.bound_is) = match (row.case == plain, resident, stream) {
            (true, ..) if row.cfg != 1.0 => (one.map(|one| 2.0 * one), "twice the resident step"),
            (true, ..) if row.case == RESIDENT => (Some(bounds.bench_step_s), "the step without a server"),
            (true, ..) => (find(RESIDENT, 1.0).map(|row| row.second.step_s), "the resident step"),
            (false, Some(resident), Some(stream)) if stream > resident => {
                (Some(stream), "streamed bytes over the link")
            }
            (false, resident, _) if decoding > 0.0 => (resident, "the resident step and decoding"),
            (false, resident, _) => (resident, "the resident step"),
        };
        row.over_bound = row.bound_s.map(|bound| row.second.step_s / bound);
        let reference = find(case.reference, row.cfg).filter(|reference| reference.name != row.name);
        let is_8_bits = row.fp8_products > 0;
        row.same_bits =
            reference.filter(|_| !is_8_bits).map(|reference| reference.second.latent == row.second.latent);
        row.error_of_products =
            reference.filter(|_| is_8_bits).and_then(|reference| row.second.error_against(&reference.second));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_is_summed_up() {
        let block = |bytes: u64, runs_on: &str, mode: &str| json!({ "bytes": bytes, "runs_on": runs_on, "mode": mode });
        let model = json!({ "plan": {
            "compute": "sim:0", "ring": { "slots": 2, "slot_bytes": 30 },
            "blocks": [block(1, "sim:0", "resident"), block(20, "sim:0", "streamed"), block(300, "sim:1", "resident")],
        } });
        let placed = Placed::read(&model);
        assert_eq!((placed.resident_bytes, placed.streamed_bytes, placed.in_place_bytes), (1, 20, 300));
        assert_eq!((placed.ring_bytes, placed.mode), (60, "streamed and in place"));
        assert_eq!(Placed::read(&json!({})).mode, "resident");
    }

    fn row(case: &'static str, cfg: f64, step_s: f64, streamed: u64, latent: u8) -> Row {
        let job = Job {
            seconds: 1.0,
            load_s: 0.0,
            step_s,
            predicted_s: None,
            measured_s: None,
            coded_steps: 0,
            steps: 0,
            decoded_bytes: 0,
            decoding_share: 0.0,
            streamed_bytes: 0,
            stalls: 0,
            stalled_s: 0.0,
            peak_private_bytes: None,
            latent: vec![latent],
            fp8_products: 0,
        };
        let host = HostMemory { process: None, ledger_bytes: 0 };
        Row {
            name: format!("{case} {cfg}"),
            case,
            allocation: String::new(),
            weight_dtype: "default",
            lora: false,
            cfg,
            placed: Placed { streamed_bytes: streamed, ..Placed::default() },
            first: job.clone(),
            second: job,
            bound_s: None,
            bound_is: "",
            over_bound: None,
            predicted_over_measured: [None; 2],
            host_before: host,
            host_after: host,
            device_used_bytes: 0,
            device_peak_bytes: 0,
            same_bits: None,
            fp8_products: 0,
            error_of_products: None,
        }
    }

    #[test]
    fn every_row_has_its_own_bound() {
        let cases = one_device(DeviceId::sim(0));
        let mut rows = vec![
            row(RESIDENT, 1.0, 0.1, 0, 1),
            row(RESIDENT, 3.5, 0.21, 0, 2),
            row("all offloaded", 1.0, 0.42, 400, 1),
            row("all offloaded", 3.5, 0.44, 400, 3),
            row("half offloaded", 3.5, 0.22, 100, 2),
            row("resident, LoRA", 1.0, 0.11, 0, 9),
            row("all offloaded, LoRA", 1.0, 0.41, 400, 9),
        ];
        compare(&mut rows, &cases, Bounds { bench_step_s: 0.099, link: Some(1000.0), decoding: None });
        let bounds: Vec<f64> = rows.iter().map(|row| row.bound_s.unwrap()).collect();
        assert_eq!(bounds, [0.099, 0.2, 0.4, 0.4, 0.21, 0.1, 0.4]);
        let same: Vec<Option<bool>> = rows.iter().map(|row| row.same_bits).collect();
        let yes = Some(true);
        assert_eq!(same, [None, None, yes, Some(false), yes, None, yes]);
    }

    #[test]
    fn a_bound_that_is_not_known_is_not_invented() {
        let cases = one_device(DeviceId::CPU);
        assert!(cases.iter().all(|case| case.allocation.is_empty()), "the CPU streams nothing");
        let mut rows = vec![row("resident, fp8", 1.0, 0.1, 0, 1)];
        compare(&mut rows, &cases, Bounds { bench_step_s: 0.1, link: None, decoding: None });
        assert_eq!((rows[0].bound_s, rows[0].over_bound), (None, None));
    }
}
