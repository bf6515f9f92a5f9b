//! The model patches of a run: their pictures made ready once, what conditionings say of places, and the networks that
//! change the model between its blocks.

use std::sync::Arc;

use graph::{Call, Failure};
use models::conditioning::{Array, Grounding};
use models::diffusion::model_patches::{PatchGiven, PatchRun};
use runtime::{Model, Network, Opened, Runtime, Source, Wanted, Work};
use sampling::LatentShape;

use super::controls::evaluated_size;
use super::entries::ReadyEntry;
use crate::control::Hint;
use crate::model_patches::ready_picture;
use crate::{Error, Result};

/// All patches of a run.
pub(crate) struct Patches {
    /// The networks, each once.
    networks: Vec<Arc<Source>>,
    uses: Vec<PatchUse>,
    /// What each does in the largest step.
    works: Vec<Work>,
}

/// One patch, and what it looks at for each size of latents, or is told for each conditioning.
struct PatchUse {
    network: usize,
    strength: f32,
    pictures: Vec<Hint>,
    grounded: Vec<Grounding>,
}

impl Patches {
    /// Makes the pictures of all patches ready, for every size that the model is evaluated at.
    pub(crate) fn prepare(
        runtime: &Runtime,
        call: &Call,
        model: &Model,
        conditionings: &[Vec<ReadyEntry>],
        (shape, step): (LatentShape, &Work),
    ) -> Result<Patches, Failure> {
        let mut all = Patches { networks: Vec::new(), uses: Vec::new(), works: Vec::new() };
        all.ground(model, conditionings, (shape, step))?;
        if model.patches.is_empty() {
            return Ok(all);
        }
        let sizes = conditionings.iter().flatten().map(|ready| evaluated_size(ready, shape));
        let mut sizes: Vec<[usize; 2]> = sizes.collect();
        sizes.sort_unstable();
        sizes.dedup();
        for patching in &model.patches {
            check_fits(&patching.patch.source, model)?;
            let picture = |size: &[usize; 2]| ready_picture(runtime, call, patching, *size);
            let pictures = sizes.iter().map(picture).collect::<Result<_>>()?;
            let network = all.network(&patching.patch.source, step);
            all.uses.push(PatchUse { network, strength: patching.strength, pictures, grounded: Vec::new() });
        }
        Ok(all)
    }

    /// One patch for each network that conditionings say by what is to be where.
    fn ground(
        &mut self,
        model: &Model,
        conditionings: &[Vec<ReadyEntry>],
        (shape, step): (LatentShape, &Work),
    ) -> Result<()> {
        let all = || conditionings.iter().flatten();
        for grounded in all().filter_map(|ready| ready.entry.grounding.as_ref()) {
            let source = &grounded.network.source;
            check_fits(source, model)?;
            let network = self.network(source, step);
            if self.uses.iter().any(|known| known.network == network) {
                continue;
            }
            let told = |ready: &ReadyEntry| {
                let own = ready.entry.grounding.as_ref();
                let own = own.filter(|other| is_same(&other.network.source, source));
                let texts = own.map(|own| own.texts.clone()).unwrap_or_default();
                Grounding { size: evaluated_size(ready, shape), texts }
            };
            let grounded = all().map(told).collect();
            self.uses.push(PatchUse { network, strength: 1.0, pictures: Vec::new(), grounded });
        }
        Ok(())
    }

    /// The place of a network, which is one for all that use it.
    fn network(&mut self, source: &Arc<Source>, step: &Work) -> usize {
        if let Some(known) = self.networks.iter().position(|known| is_same(known, source)) {
            return known;
        }
        self.networks.push(Arc::clone(source));
        self.works.push(match step {
            Work::Step(step) => Work::Patch(step.clone()),
            other => other.clone(),
        });
        self.networks.len() - 1
    }

    /// Whether nothing patches the model.
    pub(crate) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// What is opened beside the model.
    pub(crate) fn wanted(&self) -> impl Iterator<Item = Wanted<'_>> {
        let wanted = |(source, work)| Wanted { source, beside: &[], loras: &[], work };
        self.networks.iter().map(|source| &**source).zip(&self.works).map(wanted)
    }

    /// Starts every patch on the networks that were opened, which are in the order of [`Patches::wanted`].
    pub(crate) fn start<'a>(&'a self, opened: &'a [Opened]) -> Result<Vec<Box<dyn PatchRun + 'a>>> {
        let start = |PatchUse { network, strength, pictures, grounded }: &PatchUse| {
            let pictures: Vec<Array> = pictures.iter().map(|picture| picture.array.clone()).collect();
            let given = PatchGiven { pictures: &pictures, grounded, strength: *strength };
            let patch = self.networks[*network].patch_network()?;
            Ok(patch.start(&opened[*network].session, &given)?)
        };
        self.uses.iter().map(start).collect()
    }
}

/// Whether two are of one part of one file.
fn is_same(one: &Source, other: &Source) -> bool {
    Arc::ptr_eq(&one.file, &other.file) && one.part == other.part
}

/// An error if a patch is for other models.
fn check_fits(source: &Source, model: &Model) -> Result<()> {
    let network = source.patch_network()?;
    let family = match &*model.source.network {
        Network::Diffusion(_, family) => family.name,
        _ => "",
    };
    if network.patches().contains(&family) {
        return Ok(());
    }
    Err(Error::Told(format!(
        "{} is {}, which is for {}; the model {} is {}. Take a patch that was made for it, or a model of the family that the \
         patch was made for",
        source.name(),
        source.part,
        network.patches().join(" or "),
        model.source.name(),
        model.source.part.name,
    )))
}
