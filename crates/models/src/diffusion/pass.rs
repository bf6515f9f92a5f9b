//! One pass over the blocks of a transformer, and the run that makes such passes: what families whose blocks stand in a
//! row have in common. A family says how evaluations enter, how they pass a block, and how they leave.

use std::sync::Arc;

use meta::Shape;
use residency::{Lease, Session};
use sampling::LatentShape;
use tensor::Tensor;

use super::batches::{Batch, FEW_ROWS, Together, in_order};
use super::known::Known;
use super::model_patches::{PatchPass, PatchPoint, PatchRun, Seen};
use super::positions::Positions;
use super::references::ReferencePlaces;
use super::residuals::add_to_tokens;
use super::{Alteration, BlockGroup, ControlResiduals, Diffusion, DiffusionRun, Evaluation, Placed};
use crate::conditioning::{Cond, Conditioned, Scene};
use crate::{Error, Probe, Result};

/// A transformer: the first and the last block of its manifest turn latents into tokens and back.
pub(super) trait Transformer: Diffusion + Sized {
    /// What a conditioning becomes once for a run, on the device of the first block.
    type Given;
    /// Activations between blocks, of evaluations that run as one batch.
    type State;

    /// A conditioning through the first layers.
    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Self::Given>;

    /// Whether a latent is one for this model.
    fn check_latent(&self, latent: &Tensor) -> Result<()>;

    /// What decides whether evaluations fit together.
    fn shapes(&self, latent: &Shape, given: &Self::Given) -> Shapes;

    /// Where the tokens of an evaluation stand.
    fn positions(&self, latent: &Shape, given: &Self::Given) -> Positions;

    /// The same where an alteration moves the tokens of the latent, in a model that knows of it.
    fn positions_placed(&self, latent: &Shape, given: &Self::Given, placed: &Placed) -> Positions {
        let _ = placed;
        self.positions(latent, given)
    }

    /// From inputs to tokens: the first block of the manifest.
    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, Self>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<Self::State>;

    /// Through a block of the manifest.
    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        state: Self::State,
        probe: &mut Probe<'_>,
    ) -> Result<Self::State>;

    /// From tokens to a latent of this shape: the last block of the manifest.
    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &Self::State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor>;

    /// The kind of a block of the manifest and its number among its kind, of blocks that can be passed over and that
    /// control networks know.
    fn group(&self, block: usize) -> Option<(BlockGroup, usize)>;

    /// The image's tokens, to which control networks add; none in a model that no control network is for.
    fn controlled(&self, state: &Self::State) -> Result<Option<Tensor>> {
        let _ = state;
        Ok(None)
    }

    /// Where patches of the model come to a block of the manifest.
    fn patch_point(&self, block: usize) -> Option<PatchPoint> {
        self.group(block).map(|(_, index)| PatchPoint::Block(index))
    }

    /// What patches of the model see between blocks, for latents of so many rows and columns; none in a model that no patch
    /// is for.
    fn seen(&self, state: &Self::State, size: [usize; 2]) -> Result<Option<Seen>> {
        Ok(self.controlled(state)?.map(|image| Seen::tokens(size, image)))
    }
}

/// Evaluations that run as one batch.
pub(super) type Members<'a, T> = Batch<Shapes, Member<'a, <T as Transformer>::Given>>;

/// One evaluation of a step.
pub(super) struct Member<'a, G> {
    /// The noisy latent.
    pub(super) latent: &'a Tensor,
    /// The model's time.
    pub(super) time: f32,
    /// What else it is given.
    pub(super) given: &'a G,
    control: Option<&'a ControlResiduals>,
    /// How it departs from the model as it was trained.
    pub(super) altered: &'a [Alteration],
}

impl<G> Clone for Member<'_, G> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<G> Copy for Member<'_, G> {}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shapes {
    latent: Shape,
    /// Tokens of the text.
    texts: usize,
    /// Tokens that join the text further on.
    joining: usize,
    /// Times that tokens of the latent have.
    times: usize,
    /// Rows of the products from which modulations come.
    vectors: usize,
    /// Pictures to look at, and where they stand.
    references: Vec<Shape>,
    places: ReferencePlaces,
    /// Where they stand among the text, if they do.
    slots: Vec<usize>,
    /// Tokens of the latent.
    images: usize,
    altered: Vec<Alteration>,
    /// Whether something of a step before is read.
    is_kept: bool,
}

impl Shapes {
    /// A latent that becomes so many tokens, with so many tokens of text.
    pub(super) fn new(latent: &Shape, images: usize, texts: usize) -> Shapes {
        Shapes {
            latent: *latent,
            texts,
            joining: 0,
            times: 1,
            vectors: 1,
            references: Vec::new(),
            places: ReferencePlaces::default(),
            slots: Vec::new(),
            images,
            altered: Vec::new(),
            is_kept: false,
        }
    }

    /// The same with pictures to look at.
    pub(super) fn with_references(
        self,
        references: impl IntoIterator<Item = Shape>,
        places: ReferencePlaces,
    ) -> Shapes {
        Shapes { references: references.into_iter().collect(), places, ..self }
    }

    /// The same with pictures to look at before these tokens of the text.
    pub(super) fn with_slots(self, slots: Vec<usize>) -> Shapes {
        Shapes { slots, ..self }
    }

    /// The same with so many tokens that join the text further on.
    pub(super) fn with_joining(self, joining: usize) -> Shapes {
        Shapes { joining, ..self }
    }

    /// The same with so many times for tokens of the latent.
    pub(super) fn with_times(self, times: usize) -> Shapes {
        Shapes { times, ..self }
    }

    /// The same where something of a step before may be read.
    pub(super) fn with_kept(self, is_kept: bool) -> Shapes {
        Shapes { is_kept, ..self }
    }

    /// The same with modulations from so many rows.
    pub(super) fn with_vectors(self, vectors: usize) -> Shapes {
        Shapes { vectors, ..self }
    }
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        let items = self.latent.dims()[0];
        // References make blocks longer, but the last layer has the tokens of the latent alone.
        if items * self.texts.min(self.images) <= FEW_ROWS {
            return 1;
        }
        if self.vectors > FEW_ROWS { usize::MAX } else { FEW_ROWS / self.vectors.max(1) }
    }
}

/// A model with its conditionings.
struct Run<'a, T: Transformer> {
    model: &'a T,
    session: &'a Session,
    given: Vec<T::Given>,
    positions: KnownPositions,
}

/// The positions of tokens, for each kind of evaluation that has run.
pub(super) type KnownPositions = Known<Shapes, Arc<Positions>>;

/// Starts a run.
pub(super) fn start<'a, T: Transformer>(
    model: &'a T,
    session: &'a Session,
    conds: &[Conditioned<'_>],
    scene: &Scene<'_>,
) -> Result<Box<dyn DiffusionRun + 'a>> {
    let lease = session.lease(0)?;
    let prepare =
        |conditioned: &Conditioned<'_>| model.prepare(&lease, conditioned, scene, &mut Probe::none());
    let given = conds.iter().map(prepare).collect::<Result<_>>()?;
    Ok(Box::new(Run { model, session, given, positions: KnownPositions::default() }))
}

/// One evaluation of a model with a look at what its modules compute.
pub trait ForwardProbed {
    /// Evaluates the model for a latent at a time with a conditioning as it is.
    fn forward_probed(
        &self,
        session: &Session,
        asked: (&Cond, &Tensor, f32),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor>;
}

impl<T: Transformer> ForwardProbed for T {
    fn forward_probed(
        &self,
        session: &Session,
        (cond, latent, time): (&Cond, &Tensor, f32),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let scene = Scene::empty(LatentShape::sized(latent.dims())?);
        probed_in(self, session, (cond, &scene), (latent, time), probe)
    }
}

/// The same in a run.
pub(super) fn probed_in<T: Transformer>(
    model: &T,
    session: &Session,
    (cond, scene): (&Cond, &Scene<'_>),
    (latent, time): (&Tensor, f32),
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    model.check_latent(latent)?;
    let lease = session.lease(0)?;
    let given = model.prepare(&lease, &Conditioned::whole(cond), scene, probe)?;
    let member = Member { latent, time, given: &given, control: None, altered: &[] };
    let positions = KnownPositions::default();
    let mut outputs = pass(model, session, (&[member], &[]), &positions, (lease, probe))?;
    // A pass gives one result for each evaluation.
    Ok(outputs.swap_remove(0))
}

impl<T: Transformer> DiffusionRun for Run<'_, T> {
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>> {
        self.forward_patched(evaluations, &[])
    }

    fn forward_patched(
        &self,
        evaluations: &[Evaluation<'_>],
        patches: &[&dyn PatchRun],
    ) -> Result<Vec<Tensor>> {
        let members = members(self.model, &self.given, evaluations)?;
        if members.is_empty() {
            return Ok(Vec::new());
        }
        let first = self.session.lease(0)?;
        let probe = &mut Probe::none();
        pass(self.model, self.session, (&members, patches), &self.positions, (first, probe))
    }
}

/// Evaluations with what each is given.
fn members<'a, T: Transformer>(
    model: &T,
    given: &'a [T::Given],
    evaluations: &[Evaluation<'a>],
) -> Result<Vec<Member<'a, T::Given>>> {
    let member = |evaluation: &Evaluation<'a>| {
        let Evaluation { cond, latent, time, control, altered } = *evaluation;
        model.check_latent(latent)?;
        Ok(Member { latent, time, given: &given[cond], control, altered })
    };
    evaluations.iter().map(member).collect()
}

/// A pass over the blocks of a control network that has those of a transformer, and none behind them.
pub(super) struct ControlPass<'a, T: Transformer> {
    /// The transformer.
    pub(super) model: &'a T,
    pub(super) session: &'a Session,
    /// What each conditioning became.
    pub(super) given: &'a [T::Given],
    pub(super) positions: &'a KnownPositions,
}

impl<T: Transformer> ControlPass<'_, T> {
    /// For each evaluation what every block gives through a layer of its own.
    pub(super) fn results<'e>(
        &'e self,
        evaluations: &[Evaluation<'e>],
        layer: impl Fn(usize) -> String,
    ) -> Result<Vec<Vec<Tensor>>> {
        let bare = evaluations.iter().map(|it| Evaluation::new(it.cond, it.latent, it.time));
        let bare: Vec<Evaluation<'e>> = bare.collect();
        let members = members(self.model, self.given, &bare)?;
        let mut given = vec![Vec::new(); members.len()];
        if members.is_empty() {
            return Ok(given);
        }
        let probe = &mut Probe::none();
        let batches = batches_of(self.model, &members);
        let first = self.session.lease(0)?;
        let mut states = enter_all(self.model, &batches, self.positions, (first, probe))?;
        for index in 0..self.session.manifest().blocks().len() - 1 {
            let lease = self.session.lease(1 + index)?;
            let through = |state: T::State| self.model.block(&lease, 1 + index, state, probe);
            states = states.into_iter().map(through).collect::<Result<_>>()?;
            let mut parts = Vec::with_capacity(members.len());
            for (batch, state) in batches.iter().zip(&states) {
                let Some(image) = self.model.controlled(state)? else { continue };
                let result = lease.linear(&layer(index), &image)?;
                parts.extend(batch.apart(&result, batch.first().latent.dim(0))?);
            }
            given.iter_mut().zip(in_order(parts)).for_each(|(given, part)| given.push(part));
        }
        Ok(given)
    }
}

/// The batches of a step.
fn batches_of<'a, T: Transformer>(model: &T, evaluations: &[Member<'a, T::Given>]) -> Vec<Members<'a, T>> {
    Batch::all_of(evaluations, |member: &Member<'a, T::Given>| Shapes {
        altered: member.altered.to_vec(),
        ..model.shapes(member.latent.shape(), member.given)
    })
}

/// All batches through the first block, whose lease ends with it.
fn enter_all<T: Transformer>(
    model: &T,
    batches: &[Members<'_, T>],
    positions: &KnownPositions,
    (lease, probe): (Lease<'_>, &mut Probe<'_>),
) -> Result<Vec<T::State>> {
    let enter = |batch: &Members<'_, T>| {
        let Member { latent, given, .. } = batch.first();
        let make = || {
            Ok(Arc::new(match Placed::of(&batch.shapes().altered) {
                Some(placed) => model.positions_placed(latent.shape(), given, &placed),
                None => model.positions(latent.shape(), given),
            }))
        };
        model.enter(&lease, batch, positions.of(batch.shapes(), make)?, probe)
    };
    batches.iter().map(enter).collect()
}

/// One pass over the blocks, which begins with a lease of the first; one result for each evaluation, in their order.
fn pass<T: Transformer>(
    model: &T,
    session: &Session,
    (evaluations, patches): (&[Member<'_, T::Given>], &[&dyn PatchRun]),
    positions: &KnownPositions,
    (first, probe): (Lease<'_>, &mut Probe<'_>),
) -> Result<Vec<Tensor>> {
    let batches = batches_of(model, evaluations);
    let mut states = enter_all(model, &batches, positions, (first, probe))?;
    let mut patches: Vec<Box<dyn PatchPass + '_>> = patches.iter().map(|patch| patch.pass()).collect();
    let last = session.manifest().blocks().len() - 1;
    for block in 1..last {
        let lease = session.lease(block)?;
        let point = model.patch_point(block).filter(|_| !patches.is_empty());
        let before = match point {
            Some(point) if point.is_first() => seen_by_patches(model, &batches, &states)?,
            _ => Vec::new(),
        };
        let through = |(batch, state): (&Members<'_, T>, T::State)| {
            if is_skipped(model, batch, block) { Ok(state) } else { model.block(&lease, block, state, probe) }
        };
        states = batches.iter().zip(states).map(through).collect::<Result<_>>()?;
        if let Some(point) = point {
            let mut seen = seen_by_patches(model, &batches, &states)?;
            for (seen, before) in seen.iter_mut().zip(before) {
                seen.before = Some(before.image);
            }
            patches.iter_mut().try_for_each(|patch| patch.behind(point, &seen))?;
        }
        for (batch, state) in batches.iter().zip(&states) {
            add_control(model, &lease, block, (batch, state))?;
        }
    }
    let lease = session.lease(last)?;
    let mut outputs = Vec::with_capacity(evaluations.len());
    for (batch, state) in batches.iter().zip(states) {
        let latent = batch.first().latent;
        let output = model.leave(&lease, &state, latent.shape(), probe)?;
        outputs.extend(batch.apart(&output, latent.dim(0))?);
    }
    Ok(in_order(outputs))
}

/// Whether the evaluations of a batch pass over a block; all of a batch are altered alike.
fn is_skipped<T: Transformer>(model: &T, batch: &Members<'_, T>, block: usize) -> bool {
    let own = model.group(block);
    batch.shapes().altered.iter().any(|alteration| {
        matches!(alteration, Alteration::SkipBlock { group, index } if own == Some((*group, *index)))
    })
}

/// Adds what control networks say behind a block to the tokens of the evaluations that have one.
fn add_control<'a, T: Transformer>(
    model: &T,
    lease: &Lease<'_>,
    block: usize,
    (batch, state): (&Members<'a, T>, &T::State),
) -> Result<()> {
    let Some((group, index)) = model.group(block) else { return Ok(()) };
    let given = |member: &Member<'a, T::Given>| {
        let residuals = match group {
            BlockGroup::Double => &member.control?.input,
            BlockGroup::Single => &member.control?.output,
        };
        residuals.get(index)?.as_ref()
    };
    if batch.members().all(|member| given(member).is_none()) {
        return Ok(());
    }
    let Some(tokens) = model.controlled(state)? else { return untaken(model, "a control network") };
    add_to_tokens(lease, &tokens, 0, batch.members().map(given))
}

/// What patches see of all batches.
fn seen_by_patches<T: Transformer>(
    model: &T,
    batches: &[Members<'_, T>],
    states: &[T::State],
) -> Result<Vec<Seen>> {
    let seen = |(batch, state): (&Members<'_, T>, &T::State)| {
        let [.., height, width] = *batch.first().latent.dims() else {
            return wrong("the latent", "with rows and columns".into(), batch.first().latent);
        };
        match model.seen(state, [height, width])? {
            Some(seen) => Ok(seen),
            None => untaken(model, "a model patch"),
        }
    };
    batches.iter().zip(states).map(seen).collect()
}

/// The error for something inside of a model that has no place for it.
fn untaken<T, M: Transformer>(model: &M, what: &'static str) -> Result<T> {
    Err(Error::Input {
        what,
        expected: "for a model that takes one".into(),
        got: format!("given to {}", model.latent().name),
    })
}

/// The error for an input of another shape.
pub(super) fn wrong<T>(what: &'static str, expected: String, got: &Tensor) -> Result<T> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}

/// A text on the device, `[batch or 1, tokens, width]`, for a batch of so many items.
pub(super) fn text_of(lease: &Lease<'_>, cond: &Cond, batch: usize, width: usize) -> Result<Tensor> {
    let text = cond.text_on(lease.lane())?;
    if text.dim(2) != width || !(text.dim(0) == 1 || text.dim(0) == batch) {
        return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), &text);
    }
    Ok(text)
}

/// The text of an evaluation, once for each of its items.
pub(super) fn for_items(text: &Tensor, items: usize) -> Result<Tensor> {
    Ok(text.broadcast([items, text.dim(1), text.dim(2)])?.contiguous()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_few_rows_stay_products_of_few_rows() {
        let shapes = |items: usize, images: usize, texts: usize| {
            Shapes::new(&Shape::from([items, 16, 64, 64]), images, texts)
        };
        assert_eq!(shapes(1, 1024, 256).most_together(), 8);
        assert_eq!(shapes(1, 1024, 256).with_vectors(2).most_together(), 4);
        assert_eq!(shapes(1, 1024, 256).with_vectors(9).most_together(), usize::MAX);
        // Eight tokens of text, and eight of the image.
        assert_eq!(shapes(1, 1024, 8).most_together(), 1);
        assert_eq!(shapes(1, 8, 256).most_together(), 1);
        assert_eq!(shapes(2, 8, 256).most_together(), 8);
    }
}
