//! An upscaler of the size of RealESRGAN x4plus, which enlarges a picture in tiles as the node for it does; beside it the same
//! network in PyTorch, in turns.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use checkpoint::Checkpoint;
use device_cuda::CudaBackend;
use meta::{DeviceKind, Shape};
use models::detect::{Role, detect};
use models::upscale::{Pixels, USUAL_TILES, Upscaler, enlarge};
use models::vae::Tiling;
use residency::{Cancel, Products, Session};
use runtime::{Caller, Network, Opened, Placing, PlanQuestion, Source, Wanted, Work};
use serde_json::json;
use testkit::{ScratchDir, random_f32};

use super::{Bench, Peer, Row, TIMES, median};
use crate::bench::served::files;
use crate::bench::step::relative_error;
use crate::bench::torch::Torch;
use crate::cli::{BenchArgs, ModelShape};
use crate::planning::{plan_file, runtime_on};

/// What the Python process runs.
const SCRIPT: &str = include_str!("upscaler_peer.py");
/// The name of the row.
const PART: &str = "upscaler";

/// The sizes of a network, and of the picture that it enlarges.
struct Sizes {
    width: usize,
    growth: usize,
    blocks: usize,
    side: usize,
    tiling: Tiling,
}

/// RealESRGAN x4plus, in the tiles that the node has.
const RELEASED: Sizes = Sizes { width: 64, growth: 32, blocks: 23, side: 1024, tiling: USUAL_TILES };
/// One that two CPU cores can run.
const SMALL: Sizes = Sizes { width: 16, growth: 8, blocks: 2, side: 96, tiling: Tiling::square(64, 8) };

impl Sizes {
    /// The names and shapes of its tensors, as RealESRGAN's files have them.
    fn tensors(&self) -> Vec<(String, Shape)> {
        let Sizes { width, growth, blocks, .. } = *self;
        let mut all = Vec::new();
        let mut convolution = |name: String, to: usize, from: usize| {
            all.push((format!("{name}.weight"), Shape::from([to, from, 3, 3])));
            all.push((format!("{name}.bias"), Shape::from([to])));
        };
        convolution("conv_first".into(), width, 3);
        for (block, dense) in (0..blocks).flat_map(|block| (1..=3).map(move |dense| (block, dense))) {
            for step in 1..=5 {
                let to = if step == 5 { width } else { growth };
                convolution(format!("body.{block}.rdb{dense}.conv{step}"), to, width + (step - 1) * growth);
            }
        }
        for name in ["conv_body", "conv_up1", "conv_up2", "conv_hr"] {
            convolution(name.into(), width, width);
        }
        convolution("conv_last".into(), 3, width);
        all
    }
}

impl Bench<'_> {
    /// The row, and who is beside us.
    pub(super) fn upscaler(&self, rows: &mut Vec<Row>, args: &BenchArgs) -> Result<Option<String>> {
        if !self.wants(PART) {
            return Ok(None);
        }
        let sizes = if args.shape == ModelShape::Small { SMALL } else { RELEASED };
        let mut peer = peer(args)?;
        let told = match &peer {
            Ok(torch) => torch.version().to_owned(),
            Err(why) => format!("none: {why}"),
        };
        let dir = ScratchDir::new()?;
        let path = dir.join("upscaler.safetensors");
        files::write_network(&path, sizes.tensors())?;
        let file = Arc::new(Checkpoint::open(&path)?);
        let source = Source::upscaler(&file, &detect(&file), Placing::automatic(self.compute))?;
        let Network::Upscale(upscaler) = &*source.network else { bail!("{} is no upscaler", source.part) };
        let [channels, _] = upscaler.channels();
        let values = random_f32(1, sizes.side * sizes.side * channels).into_iter().map(f32::abs).collect();
        let enlarging =
            Enlarging { upscaler: &**upscaler, sizes: &sizes, values, dir: dir.path(), model: &path };
        let question = PlanQuestion {
            part: Some(Role::Upscale),
            size: (sizes.side, sizes.side),
            ..PlanQuestion::default()
        };
        let plan = plan_file((&self.devices, self.compute), &file, Products::Exact, &question)?;
        let planned_bytes = plan.device(self.compute).map_or(0, placement::DeviceUse::total_bytes);
        let work = Work::upscale(sizes.side, sizes.side);
        let wanted = Wanted { source: &source, beside: &[], loras: &[], work: &work };
        let caller = Caller { job: None, cancel: Cancel::default(), device: None };
        let row = runtime_on(&self.devices, self.compute, Products::Exact)?.with_session(
            wanted,
            &caller,
            |opened| {
                let row = self.enlarged(&enlarging, opened, peer.as_mut().ok());
                row.map_err(|error| runtime::Error::Told(format!("{error:#}")))
            },
        )?;
        rows.push(Row { planned_bytes, ..row });
        Ok(Some(told))
    }

    /// Ours and the peer's in turns.
    fn enlarged(
        &self,
        enlarging: &Enlarging<'_>,
        opened: &Opened,
        mut peer: Option<&mut Torch>,
    ) -> Result<Row> {
        let (card, ledger) = (self.machine.cuda(self.compute), self.devices.get(self.compute)?.ledger());
        ledger.take_peak();
        card.map(CudaBackend::take_peak_bytes);
        let tile = opened.work.tile().unwrap_or(USUAL_TILES.tile);
        let tiling = Tiling { tile: tile.min(enlarging.sizes.tiling.tile), ..enlarging.sizes.tiling };
        let once = || enlarging.ours(&opened.session, tiling);
        let (first_s, _) = once()?;
        if let Some(peer) = peer.as_deref_mut() {
            enlarging.load(peer, &opened.session, tiling)?;
            peer.seconds(&json!({ "do": "run" }))?;
        }
        let operations = self.operations(&|| Ok(once()?.0))?;
        let (mut own, mut theirs, mut picture) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            let (seconds, enlarged) = once()?;
            own.push(seconds);
            picture = enlarged;
            if let Some(peer) = peer.as_deref_mut() {
                theirs.push(peer.seconds(&json!({ "do": "run" }))?);
            }
        }
        let seconds = median(own);
        let beside = match peer {
            None => None,
            Some(peer) => {
                let seconds_of_peer = median(theirs);
                let relative_error = relative_error(&picture, &enlarging.theirs(peer)?);
                Some(Peer { seconds: seconds_of_peer, ratio: seconds / seconds_of_peer, relative_error })
            }
        };
        Ok(Row {
            part: PART,
            size: enlarging.sizes.side,
            streamed_bytes: 0,
            over_bound: None,
            first_s,
            seconds,
            peak_bytes: card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
            planned_bytes: 0,
            operations,
            peer: beside,
        })
    }
}

/// PyTorch, if it is wanted and there; it must be there if it was asked for by name.
fn peer(args: &BenchArgs) -> Result<Result<Torch, String>> {
    if args.python == "none" {
        return Ok(Err("left out".into()));
    }
    match Torch::running(&args.python, SCRIPT) {
        Err(error) if args.with_torch => {
            Err(error.context("--with-torch: name a Python that has PyTorch with --python"))
        }
        other => Ok(other.map_err(|error| format!("{error:#}"))),
    }
}

/// A picture and the network that enlarges it.
struct Enlarging<'a> {
    upscaler: &'a dyn Upscaler,
    sizes: &'a Sizes,
    values: Vec<f32>,
    /// Where both sides leave what the other reads.
    dir: &'a Path,
    model: &'a Path,
}

impl Enlarging<'_> {
    /// Seconds from a picture on the host to the enlarged one there.
    fn ours(&self, session: &Session, tiling: Tiling) -> Result<(f64, Vec<f32>)> {
        let start = Instant::now();
        let pixels = Pixels { height: self.sizes.side, width: self.sizes.side, values: &self.values };
        let enlarged = enlarge(self.upscaler, session, &pixels, tiling, &mut |_, _| Ok(()))?;
        Ok((start.elapsed().as_secs_f64(), enlarged))
    }

    /// Gives the peer the same, in the type that we compute in.
    fn load(&self, peer: &mut Torch, session: &Session, tiling: Tiling) -> Result<()> {
        let picture = self.dir.join("picture");
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        disk::write(&picture, &bytes)?;
        let lane = session.lane()?;
        let device = if lane.device().id().kind == DeviceKind::Cuda { "cuda" } else { "cpu" };
        peer.ask(&json!({
            "do": "load", "model": self.model, "picture": picture, "side": self.sizes.side,
            "blocks": self.sizes.blocks, "tile": tiling.tile, "overlap": tiling.overlap, "device": device,
            "dtype": lane.dtype().name(),
        }))?;
        Ok(())
    }

    /// What the peer made of it last.
    fn theirs(&self, peer: &mut Torch) -> Result<Vec<f32>> {
        let output = self.dir.join("enlarged");
        peer.ask(&json!({ "do": "finish", "output": output }))?;
        let bytes = std::fs::read(&output)?;
        Ok(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_released_network_has_its_size() {
        let values: usize = RELEASED.tensors().iter().map(|(_, shape)| shape.count()).sum();
        assert_eq!(values, 16_697_987);
    }
}
