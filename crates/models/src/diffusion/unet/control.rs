//! Control networks of the UNet's kind (lllyasviel/ControlNet, `cldm.py`): its way in and its middle once more, with a
//! picture added behind the first convolution; what each block gives goes through a convolution of its own. Some know
//! several kinds of pictures (xinsir6/ControlNetPlus).

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::{KeyMap, PatchFile};
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, ConvolutionShape, Tensor};

use super::config::{Place, Side};
use super::given::Given;
use super::state::State;
use super::{Config, Kind, Member, Unet, layers, names, weights};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondShape, Conditioned, Scene};
use crate::control::{ControlNetwork, ControlRun, Controlled, HintSpec};
use crate::detect::{Layout, Part};
use crate::diffusion::batches::{Batch, in_order};
use crate::diffusion::modulation::waves;
use crate::diffusion::{ControlResiduals, Evaluation};
use crate::{Error, Module, Probe, Result};

/// The layers that look at the picture: their numbers, and how far each steps.
const HINT_LAYERS: [(usize, usize); 8] = [(0, 1), (2, 1), (4, 2), (6, 1), (8, 2), (10, 1), (12, 2), (14, 1)];
/// Waves for each kind of picture.
const KIND_WAVES: usize = 256;

/// A control network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub(super) struct UnetControl {
    unet: Unet,
    controls: &'static [&'static str],
    hint_channels: usize,
    /// Kinds of pictures that it knows apart; none if it knows one only.
    kinds: usize,
    /// What it needs, if that is not in its own file alone, and what is patched into that.
    on_base: Option<(Manifest, PatchFile)>,
}

/// A network with its pictures and conditionings.
struct Run<'a> {
    network: &'a UnetControl,
    session: &'a Session,
    given: Vec<Given>,
}

impl UnetControl {
    /// Reads the network's sizes from a part of a file.
    pub(super) fn read(
        checkpoint: &Checkpoint,
        part: &Part,
        kind: &'static Kind,
        controls: &'static [&'static str],
    ) -> Result<UnetControl> {
        let is_diffusers = part.layout == Layout::Diffusers;
        let stored = is_diffusers.then(|| names::of_diffusers_control(checkpoint, &part.prefix));
        let claims = Claims::new(checkpoint, &part.prefix, kind.family).stored_as(stored.as_ref());
        let [_, hint_channels, _, _] = claims.dims("input_hint_block.0.weight")?;
        let kinds = match claims.find("task_embedding") {
            Some(_) => claims.dims::<2>("task_embedding")?[0],
            None => 0,
        };
        let config = Config::without_end(&claims, kind.heads)?;
        let sampling = (kind.sampling)(&claims, &config);
        let unet = Unet { config, prefix: part.prefix.clone(), stored, kind, sampling };
        Ok(UnetControl { unet, controls, hint_channels, kinds, on_base: None })
    }

    /// One that is made of a model's layers and its own: with all that it needs, and what is patched into that.
    pub(super) fn over_base(
        unet: Unet,
        (controls, hint_channels): (&'static [&'static str], usize),
        claims: &Claims<'_>,
        patches: PatchFile,
    ) -> Result<UnetControl> {
        let alone = UnetControl { unet, controls, hint_channels, kinds: 0, on_base: None };
        let manifest = manifest(claims, &alone)?;
        Ok(UnetControl { on_base: Some((manifest, patches)), ..alone })
    }

    /// The picture through its layers, `[items, channels, height, width]`.
    fn hint(&self, lease: &Lease<'_>, controlled: &Controlled<'_>) -> Result<Tensor> {
        let axes = controlled.hint_axes(self.hint_channels)?;
        let mut hint = lease.lane().tensor(axes, &controlled.hint.values)?;
        for (index, stride) in HINT_LAYERS {
            let name = format!("input_hint_block.{index}");
            hint = layers::convolve(lease, &name, &hint, &ConvolutionShape::uniform(2, stride, 1))?;
            let is_last = Some(&(index, stride)) == HINT_LAYERS.last();
            hint = if is_last { hint } else { hint.activate(Activation::Silu)? };
        }
        match controlled.picture_kind.filter(|_| self.kinds > 0) {
            Some(kind) => self.moved_by_kind(lease, &hint, kind),
            None => Ok(hint),
        }
    }

    /// A picture of a kind that the network knows, moved by what it is.
    fn moved_by_kind(&self, lease: &Lease<'_>, hint: &Tensor, kind: usize) -> Result<Tensor> {
        self.check_kind(kind)?;
        let (items, channels) = (hint.dim(0), hint.dim(1));
        let ids = lease.lane().ids([1, 1], &[kind as i32])?;
        let task = lease.lane().embedding(&lease.weight("task_embedding")?, &ids)?;
        let seen = hint.mean(&[2, 3])?.reshape([items, 1, channels])?.add(&task)?;
        let layer = |name: &str| format!("transformer_layes.0.{name}");
        let normed = |name: &str, x: &Tensor| -> Result<Tensor> {
            let weight = lease.weight(&layer(&format!("{name}.weight")))?;
            let bias = lease.find(&layer(&format!("{name}.bias")))?;
            Ok(x.layer_norm(Some(&weight), bias.as_ref(), 1e-5)?)
        };
        // Attention of one token over itself gives its values.
        let qkv = lease.linear(&layer("attn.in_proj"), &normed("ln_1", &seen)?)?;
        let attended = lease.linear(&layer("attn.out_proj"), &qkv.slice(2, 2 * channels, channels)?)?;
        let seen = seen.add(&attended)?;
        let inner =
            lease.linear_then(&layer("mlp.c_fc"), &normed("ln_2", &seen)?, Some(Activation::QuickGelu))?;
        let seen = seen.add(&lease.linear(&layer("mlp.c_proj"), &inner)?)?;
        let moved = lease.linear("spatial_ch_projs", &seen)?;
        Ok(hint.add(&moved.reshape([items, channels, 1, 1])?)?)
    }

    /// What the kind of picture adds to the time, `[1, width]`.
    fn embedded_kind(&self, lease: &Lease<'_>, kind: Option<usize>) -> Result<Tensor> {
        let told = (0..self.kinds).map(|index| if Some(index) == kind { 1.0 } else { 0.0 });
        let values: Vec<f32> = told.flat_map(|value| waves(value, KIND_WAVES)).collect();
        let values = lease.lane().tensor([1, values.len()], &values)?;
        let inner = lease.linear_then("control_add_embedding.linear_1", &values, Some(Activation::Silu))?;
        Ok(lease.linear("control_add_embedding.linear_2", &inner)?)
    }

    fn check_kind(&self, kind: usize) -> Result<()> {
        if kind < self.kinds {
            return Ok(());
        }
        Err(Error::Input {
            what: "the kind of control picture",
            expected: format!("one of the {} that the network has", self.kinds),
            got: format!("number {kind}"),
        })
    }

    fn prepare(&self, lease: &Lease<'_>, controlled: &Controlled<'_>, scene: &Scene<'_>) -> Result<Given> {
        let cond = Cond { concat_latent: None, concat_mask: None, ..controlled.cond.clone() };
        let mut given = Given::of(&self.unet, lease, &Conditioned::whole(&cond), scene)?;
        if self.kinds > 0 {
            let kind = self.embedded_kind(lease, controlled.picture_kind)?;
            given.vector = Some(match given.vector {
                Some(vector) => vector.add(&kind)?,
                None => kind,
            });
        }
        given.hint = Some(self.hint(lease, controlled)?);
        Ok(given)
    }

    /// One pass over the units; for each evaluation what every block gave, the middle last.
    fn pass(&self, session: &Session, evaluations: &[Member<'_>]) -> Result<Vec<Vec<Tensor>>> {
        let (config, probe) = (&self.unet.config, &mut Probe::none());
        let batches = Batch::all_of(evaluations, |member| self.unet.shapes(member));
        let mut given = vec![Vec::new(); evaluations.len()];
        let mut states: Vec<State<'_>> = {
            let lease = session.lease(0)?;
            let states = batches.iter().map(|batch| self.unet.enter(&lease, batch, probe));
            let mut states = states.collect::<Result<Vec<_>>>()?;
            keep(&lease, Place { side: Side::Input, block: 0 }, &mut states, &mut given)?;
            states
        };
        for (index, unit) in config.units.iter().enumerate() {
            let lease = session.lease(index + 1)?;
            for state in &mut states {
                state.through(config, &lease, unit, probe)?;
            }
            if unit.closes {
                keep(&lease, unit.place, &mut states, &mut given)?;
            }
        }
        Ok(given)
    }
}

/// Hands each evaluation its part of what a block gave, through the block's own convolution.
fn keep(lease: &Lease<'_>, place: Place, states: &mut [State<'_>], given: &mut [Vec<Tensor>]) -> Result<()> {
    let mut parts = Vec::with_capacity(given.len());
    for state in states {
        // There is no way out that would want it.
        state.forget_kept();
        let result = layers::convolution(lease, &zero_name(place), &state.image, 0)?;
        parts.extend(state.batch.apart(&result, state.batch.first().latent.dim(0))?);
    }
    given.iter_mut().zip(in_order(parts)).for_each(|(given, part)| given.push(part));
    Ok(())
}

fn zero_name(place: Place) -> String {
    match place.side {
        Side::Input | Side::Output => format!("zero_convs.{}.0", place.block),
        Side::Middle => "middle_block_out.0".to_owned(),
    }
}

/// What a network of these sizes needs, block by block.
fn manifest(claims: &Claims<'_>, network: &UnetControl) -> Result<Manifest> {
    let config = &network.unet.config;
    let mut entrance = weights::entrance(claims, config)?;
    entrance.extend(zero_layer(claims, Place { side: Side::Input, block: 0 }, config.channels)?);
    let mut from = network.hint_channels;
    for (index, _) in HINT_LAYERS {
        let name = format!("input_hint_block.{index}");
        let [to, _, _, _] = claims.dims(&format!("{name}.weight"))?;
        entrance.extend(claims.layer(&name, &[to, from, 3, 3])?);
        from = to;
    }
    if network.kinds > 0 {
        entrance.extend(kind_layers(claims, config, network.kinds)?);
    }
    let mut builder = Manifest::builder(claims.file(), network.unet.kind.family).block("in", true, entrance);
    for unit in &config.units {
        let mut block = weights::of_unit(claims, config, unit)?;
        if unit.closes {
            block.extend(zero_layer(claims, unit.place, unit.channels())?);
        }
        builder = builder.block(unit.block_name(), false, block);
    }
    Ok(builder.finish()?)
}

/// Channels of the layers that look at the picture, but for the last, which gives the model's.
const HINT_CHANNELS: [usize; 8] = [16, 16, 32, 32, 96, 96, 256, 0];

/// The tensors of a released network beside a model of these: the way in and the middle, a layer behind each block, and
/// those that look at the picture.
pub(in crate::diffusion) fn released_tensors(model: &[(String, Shape)]) -> Vec<(String, Shape)> {
    let kept = ["time_embed.", "label_emb.", "input_blocks.", "middle_block."];
    let is_kept = |name: &str| kept.iter().any(|layer| name.starts_with(layer));
    let mut all: Vec<(String, Shape)> = model.iter().filter(|(name, _)| is_kept(name)).cloned().collect();
    // What a block gives, by the last layer that every block of its kind has.
    let given = |block: &str| {
        let ends = ["0.out_layers.3.bias", "0.op.bias", "0.bias"];
        let mut names = ends.iter().map(|end| format!("{block}.{end}"));
        names.find_map(|name| model.iter().find(|(known, _)| *known == name)).map(|(_, shape)| shape.count())
    };
    let (blocks, middle) =
        ((0..).map_while(|block| given(&format!("input_blocks.{block}"))), given("middle_block"));
    let channels = blocks.clone().next().unwrap_or(0);
    let blocks =
        blocks.enumerate().map(|(block, channels)| (zero_name(Place { side: Side::Input, block }), channels));
    let middle = middle.map(|channels| (zero_name(Place { side: Side::Middle, block: 0 }), channels));
    let zero = blocks.chain(middle).map(|(name, channels)| (name, [channels, channels, 1]));
    let hint = HINT_LAYERS.iter().zip(HINT_CHANNELS).scan(3, |from, ((index, _), to)| {
        let to = if to == 0 { channels } else { to };
        Some((format!("input_hint_block.{index}"), [to, std::mem::replace(from, to), 3]))
    });
    for (name, [to, from, side]) in zero.chain(hint) {
        all.push((format!("{name}.weight"), Shape::from([to, from, side, side])));
        all.push((format!("{name}.bias"), Shape::from([to])));
    }
    all
}

fn zero_layer(claims: &Claims<'_>, place: Place, channels: usize) -> Result<Vec<WeightSpec>> {
    claims.layer(&zero_name(place), &[channels, channels, 1, 1])
}

fn kind_layers(claims: &Claims<'_>, config: &Config, kinds: usize) -> Result<Vec<WeightSpec>> {
    let [_, width] = claims.dims("task_embedding")?;
    let layer = |name: &str| format!("transformer_layes.0.{name}");
    let mut weights = vec![claims.weight("task_embedding", &[kinds, width])?];
    weights.extend(claims.layer(&layer("attn.in_proj"), &[3 * width, width])?);
    weights.extend(claims.layer(&layer("attn.out_proj"), &[width, width])?);
    weights.extend(claims.layer(&layer("ln_1"), &[width])?);
    weights.extend(claims.layer(&layer("ln_2"), &[width])?);
    weights.extend(claims.layer(&layer("mlp.c_fc"), &[4 * width, width])?);
    weights.extend(claims.layer(&layer("mlp.c_proj"), &[width, 4 * width])?);
    weights.extend(claims.layer("spatial_ch_projs", &[config.channels, width])?);
    let time = config.time_width;
    weights.extend(claims.layer("control_add_embedding.linear_1", &[time, kinds * KIND_WAVES])?);
    weights.extend(claims.layer("control_add_embedding.linear_2", &[time, time])?);
    Ok(weights)
}

impl Module for UnetControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        match &self.on_base {
            Some((manifest, _)) => Ok(manifest.clone()),
            None => manifest(&self.unet.claims(checkpoint), self),
        }
    }

    fn activations(&self) -> &'static [DType] {
        self.unet.activations()
    }
}

impl ControlNetwork for UnetControl {
    fn controls(&self) -> &'static [&'static str] {
        self.controls
    }

    fn hint(&self) -> HintSpec {
        HintSpec::pixels(self.hint_channels)
    }

    fn latent_channels(&self) -> usize {
        self.unet.kind.latent.channels
    }

    fn picture_kinds(&self) -> usize {
        self.kinds
    }

    fn patches(&self) -> Option<&PatchFile> {
        self.on_base.as_ref().map(|(_, patches)| patches)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::for_unet(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        Cond::text(Array::zeros(&[1, shape.tokens.max(1), self.unet.config.context_width]), None)
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>> {
        let lease = session.lease(0)?;
        let prepare = |controlled: &Controlled<'_>| self.prepare(&lease, controlled, scene);
        let given = controlled.iter().map(prepare).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, given }))
    }
}

impl ControlRun for Run<'_> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>> {
        let mut members = Vec::with_capacity(evaluations.len());
        for Evaluation { cond, latent, time, .. } in evaluations {
            let member = Member {
                cond: *cond,
                latent,
                time: *time,
                given: &self.given[*cond],
                control: None,
                altered: &[],
            };
            self.network.unet.check(&member)?;
            members.push(member);
        }
        let residuals = |mut results: Vec<Tensor>| {
            let middle = results.pop();
            let output = results.into_iter().map(Some).collect();
            ControlResiduals { input: Vec::new(), middle: vec![middle], output }
        };
        Ok(self.network.pass(self.session, &members)?.into_iter().map(residuals).collect())
    }
}
