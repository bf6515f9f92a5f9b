//! An autoencoder of videos of the size of Wan 2.1's, which decodes a video a few frames at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use device_cuda::CudaBackend;
use models::Module;
use models::detect::{Reader, Role, detect};
use models::vae::Autoencoder;
use runtime::PlanQuestion;
use serde_json::Value;
use testkit::{Manifest, ScratchDir, random_normal};

use super::{Bench, Opened, Row};

/// A small one of the same kind: the same tensors with fewer channels.
const SMALL: &str = include_str!("../../../../testkit/data/manifests/wan_2.1_vae_tiny.json");
/// How many times as many channels the released one has.
const WIDER: u64 = 6;
/// Width and height of the video.
const SIZE: (usize, usize) = (832, 480);
/// Its frames.
const FRAMES: [usize; 2] = [33, 81];
/// Times that count; their median does.
const TIMES: usize = 3;

impl Bench<'_> {
    pub(super) fn video(&self, rows: &mut Vec<Row>) -> Result<()> {
        if !self.wants("video") {
            return Ok(());
        }
        let dir = ScratchDir::new()?;
        let path = write(dir.path())?;
        let file = Arc::new(Checkpoint::open(&path)?);
        let found = detect(&file);
        let part = found.part(Role::Autoencoder, "an autoencoder")?;
        let Some(Reader::Autoencoder(family)) = part.reader else {
            anyhow::bail!("{part} cannot be measured");
        };
        let autoencoder = (family.read)(&file, part)?;
        for frames in FRAMES {
            rows.push(self.decoded(&file, &*autoencoder, frames)?);
        }
        Ok(())
    }

    /// A video of so many frames.
    fn decoded(&self, file: &Arc<Checkpoint>, autoencoder: &dyn Autoencoder, frames: usize) -> Result<Row> {
        let question = PlanQuestion { size: SIZE, frames, ..PlanQuestion::default() };
        let module: &dyn Module = autoencoder;
        let opened = Opened::new(&self.devices, self.compute, file, module, &question)?;
        let per_value = autoencoder.frames_per_value().context("an autoencoder of videos has frames")?;
        let side = |pixels: usize| pixels / autoencoder.pixels_per_value();
        let shape =
            [1, autoencoder.latent_channels(), (frames - 1) / per_value + 1, side(SIZE.1), side(SIZE.0)];
        let latent = opened.session.lane()?.tensor(shape, &random_normal(1, shape.iter().product()))?;
        let (card, ledger) = (self.machine.cuda(self.compute), self.devices.get(self.compute)?.ledger());
        ledger.take_peak();
        card.map(CudaBackend::take_peak_bytes);
        let once = || -> Result<f64> {
            let (start, mut given) = (Instant::now(), 0);
            autoencoder.decode(&opened.session, &latent, None, &mut |pictures| {
                given += pictures.len() / (3 * SIZE.0 * SIZE.1);
                Ok(())
            })?;
            anyhow::ensure!(given == frames, "{given} of {frames} frames were decoded");
            Ok(start.elapsed().as_secs_f64())
        };
        let first_s = once()?;
        let operations = self.operations(&once)?;
        let mut times = (0..TIMES).map(|_| once()).collect::<Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(Row {
            part: "video",
            size: frames,
            streamed_bytes: opened.streamed_bytes,
            over_bound: None,
            first_s,
            seconds: times[TIMES / 2],
            peak_bytes: card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
            planned_bytes: opened.planned_bytes,
            operations,
            peer: None,
        })
    }
}

/// Writes the released size: every dimension that counts channels within the network is as much wider.
fn write(folder: &Path) -> Result<std::path::PathBuf> {
    let mut manifest: Value = serde_json::from_str(SMALL)?;
    let tensors = manifest["tensors"].as_array_mut().context("a manifest has tensors")?;
    for tensor in tensors {
        let name = tensor["name"].as_str().context("a tensor has a name")?.to_owned();
        let shape = tensor["shape"].as_array().context("a tensor has a shape")?.clone();
        let wider = |(axis, length): (usize, &Value)| {
            let is_within = match (name.as_str(), axis) {
                ("conv1.weight" | "conv1.bias" | "conv2.weight" | "conv2.bias", _) => false,
                ("encoder.head.2.weight" | "encoder.head.2.bias", 0) => false,
                ("decoder.head.2.weight" | "decoder.head.2.bias", 0) => false,
                ("encoder.conv1.weight" | "decoder.conv1.weight", 1) => false,
                (_, 0) => true,
                (name, 1) => name.ends_with(".weight"),
                _ => false,
            };
            let length = length.as_u64().unwrap_or(1);
            Value::from(if is_within { WIDER * length } else { length })
        };
        let wide: Vec<Value> = shape.iter().enumerate().map(wider).collect();
        if wide.get(1) != shape.get(1) {
            let scale = tensor["scale"].as_f64().context("a tensor has a scale")?;
            tensor["scale"] = Value::from(scale / (WIDER as f64).sqrt());
        }
        tensor["shape"] = Value::from(wide);
    }
    manifest["file"] = Value::from("wide.safetensors");
    Ok(Manifest::parse(&manifest.to_string())?.write_to(folder)?)
}
