//! Where cases run in one way: a runtime of its own, and nodes that keep what the reference kept.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow};
use golden::{Case, Part, Tolerance};
use graph::{
    CacheMode, Call, Catalogue, Executor, Failure, Input, Literal, Map, NodeClass, NodeErrors, Observer,
    Outcome as NodeOutcome, Prompt, PromptNode, RunEnd, RunEvent, RunRequest, Schema, Value,
};
use meta::DType;
use nodes::value::{Conditioning, Image, LatentImage, Mask, Sigmas};
use placement::{BlockMode, BlockPlan};
use residency::{FreeRequest, ModelReport, Products};
use runtime::Settings;
use runtime::{Folders, Runtime};

use super::places::{Places, WayPlace};
use super::spread::spread;
use super::verdict::{CodedWeights, Outcome, Verdict};
use crate::cli::How;
use crate::serving;

/// The class that keeps what it is given.
const COLLECT: &str = "Collect reference tensor";

/// What nodes gave, by the names that the reference has for it.
type Collected = Arc<Mutex<HashMap<String, Value>>>;

/// A runtime that runs cases in one way.
pub(super) struct Bench {
    pub(super) place: WayPlace,
    runtime: Arc<Runtime>,
    catalogue: Arc<Catalogue>,
    collected: Collected,
}

impl Bench {
    pub(super) fn new(
        place: WayPlace,
        places: &Places,
        (folders, profile_file): (Folders, PathBuf),
        dtype: DType,
    ) -> Result<Bench> {
        let settings = Settings {
            profile_file: Some(profile_file),
            activations: Some(dtype),
            // Reference values are of exact products.
            products: Products::Exact,
            ..Settings::default()
        };
        let runtime = serving::runtime(places.machine(), folders, Some(place.compute), settings)?;
        let collected = Collected::default();
        let mut catalogue = nodes::catalogue(&runtime);
        catalogue.add(Collect(Arc::clone(&collected)));
        Ok(Bench { place, runtime, catalogue: Arc::new(catalogue), collected })
    }

    /// The classes of a case that are not there, for people.
    pub(super) fn missing_classes(&self, case: &Case) -> Option<String> {
        let classes = case.prompt.nodes.values().filter_map(|node| node.class_type.as_deref());
        let mut missing: Vec<&str> = classes.filter(|class| self.catalogue.get(class).is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        (!missing.is_empty()).then(|| format!("no class {}", missing.join(", ")))
    }

    /// Runs a case and compares what its nodes gave. Afterwards no model is loaded.
    pub(super) fn run(&self, case: &Case, tolerance: Tolerance) -> Result<Outcome> {
        let verdict = self.execute(case);
        let (stayed, problem) = self.placing();
        let coded = CodedWeights::of(self.runtime.residency.models().iter().map(|model| &model.plan));
        let collected = std::mem::take(&mut *self.collected.lock().unwrap_or_else(PoisonError::into_inner));
        let free = FreeRequest { unload_models: true, force: true, ..FreeRequest::default() };
        self.runtime.residency.free(free, &mut || {})?;
        match (verdict, problem) {
            (Verdict::Ok, None) => Ok(Outcome { stayed, coded, ..compare(case, &collected, tolerance)? }),
            (Verdict::Ok, Some(problem)) => Ok(Outcome::of(problem)),
            (other, _) => Ok(Outcome::of(other)),
        }
    }

    /// Runs the workflow of a case to its end, as `gantry run` does; its outputs are nodes that keep what is compared.
    fn execute(&self, case: &Case) -> Verdict {
        let mut prompt = case.prompt.clone();
        if self.place.how != How::Resident && spread(&mut prompt, &self.catalogue, &self.place) == 0 {
            let reason = "no loader of the workflow takes an allocation".to_owned();
            return Verdict::NotYet { reason, everywhere: false };
        }
        let targets = collect(&mut prompt, case);
        let outputs = match graph::validate(&self.catalogue, &mut prompt, Some(&targets)) {
            Ok(accepted) if accepted.node_errors.is_empty() => accepted.outputs,
            Ok(accepted) => return Verdict::not_yet(&told(&accepted.node_errors)),
            Err(rejected) if !rejected.node_errors.is_empty() => {
                return Verdict::not_yet(&told(&rejected.node_errors));
            }
            Err(rejected) => {
                return Verdict::not_yet(&format!("{} {}", rejected.error.message, rejected.error.details));
            }
        };
        let request = RunRequest {
            prompt_id: case.name.clone(),
            prompt: Arc::new(prompt),
            outputs,
            extra: Map::new(),
            secrets: Map::new(),
            cancel: Arc::new(AtomicBool::new(false)),
            worker: None,
            observer: Arc::new(Quiet),
        };
        match Executor::new(Arc::clone(&self.catalogue), CacheMode::Classic).run(request).end {
            RunEnd::Succeeded => Verdict::Ok,
            RunEnd::Failed(failure) => {
                let identity = &failure.identity;
                let reason = format!("node {} ({}): {}", identity.display, identity.class, failure.message);
                let is_loader = case.loaders.contains(identity.node.as_ref() as &str);
                Verdict::of_failure(&reason, is_loader, failure.is_out_of_memory)
            }
            RunEnd::Interrupted { .. } => Verdict::Failed { reason: "interrupted".to_owned() },
        }
    }

    /// The models that have no block where the way puts some, and what that says of the case: resident ones must be
    /// where they compute, of the others one has to be spread.
    fn placing(&self) -> (Vec<String>, Option<Verdict>) {
        let models = self.runtime.residency.models();
        let place = &self.place;
        let is_away = |block: &BlockPlan| block.mode == BlockMode::Streamed || block.home != place.compute;
        if place.how == How::Resident {
            let away = models.iter().flat_map(|model| &model.plan.blocks).filter(|block| is_away(block));
            let away: Vec<&str> = away.map(|block| block.name.as_str()).take(3).collect();
            let told = || {
                format!("{} had no room for all blocks: {}, … were elsewhere", place.compute, away.join(", "))
            };
            let problem = (!away.is_empty()).then(|| Verdict::Failed { reason: told() });
            return (Vec::new(), problem);
        }
        let is_spread = |model: &ModelReport| match place.other {
            Some(other) => model.plan.blocks.iter().any(|block| block.home == other),
            None => model.plan.blocks.iter().any(|block| block.mode == BlockMode::Streamed),
        };
        let stayed =
            models.iter().filter(|model| !is_spread(model)).map(|model| model.name.clone()).collect();
        // A plan says that blocks are to travel; the ring counts those that did.
        let travelled = place.other.is_some() || models.iter().any(|model| model.stats.bytes > 0);
        let problem = (!travelled || !models.iter().any(is_spread)).then(|| Verdict::NotYet {
            reason: format!("no block of its models is one that can be {}", place.how.name()),
            everywhere: false,
        });
        (stayed, problem)
    }
}

/// Adds a node for everything that is compared; their ids.
fn collect(prompt: &mut Prompt, case: &Case) -> Vec<String> {
    let mut targets = Vec::new();
    for wanted in &case.wanted {
        let link = Literal::List(vec![wanted.node.as_str().into(), (wanted.output as i64).into()]);
        let inputs = graph::map([("value", link), ("name", wanted.name.as_str().into())]);
        let id = format!("collect {}", wanted.name);
        prompt.nodes.insert(id.as_str().into(), PromptNode::new(COLLECT, inputs));
        targets.push(id);
    }
    targets
}

/// What is wrong with a workflow, for people.
fn told(errors: &NodeErrors) -> String {
    let lines = errors.iter().flat_map(|(id, node)| {
        let line = move |error: &graph::ErrorDetail| {
            format!("node {id} ({}): {}: {}", node.class_type, error.message, error.details)
        };
        node.errors.iter().map(line)
    });
    lines.collect::<Vec<_>>().join("; ")
}

/// Compares what nodes gave with the reference.
fn compare(case: &Case, collected: &HashMap<String, Value>, tolerance: Tolerance) -> Result<Outcome> {
    let mut outcome = Outcome::of(Verdict::Ok);
    let mut wrong = Vec::new();
    for wanted in &case.wanted {
        let value = collected
            .get(&wanted.name)
            .ok_or_else(|| anyhow!("{}: node {} gave nothing", case.name, wanted.node))?;
        let (shape, values) = match read(value, wanted.part) {
            Some(read) => read,
            None => {
                wrong.push(format!("{}: the node gave {} instead", wanted.name, value.describe()));
                continue;
            }
        };
        match case.compare(wanted, &shape, &values) {
            Ok(report) => {
                if !report.passes(tolerance.relative) {
                    wrong.push(format!("{} by {:.1e}", wanted.name, report.relative));
                }
                if outcome.worst.as_ref().is_none_or(|(worst, _)| report.relative > *worst) {
                    outcome.worst = Some((report.relative, wanted.name.clone()));
                }
            }
            Err(error) => wrong.push(error.to_string()),
        }
        outcome.compared += 1;
        outcome.values.push((wanted.name.clone(), values));
    }
    if !wrong.is_empty() {
        outcome.verdict = Verdict::Differs { reason: wrong.join(", ") };
    }
    Ok(outcome)
}

/// The shape and the values of a part of an output.
fn read(value: &Value, part: Part) -> Option<(Vec<usize>, Vec<f32>)> {
    if let Some(conditioning) = value.downcast::<Conditioning>() {
        let array = match part {
            Part::Tokens(entry) => Arc::clone(&conditioning.entries.get(entry)?.cond.text),
            Part::Pooled(entry) => Arc::clone(conditioning.entries.get(entry)?.cond.pooled.as_ref()?),
            Part::SecondText(entry) => {
                Arc::clone(conditioning.entries.get(entry)?.cond.second_text.as_ref()?)
            }
            Part::Whole => return None,
        };
        return Some((array.shape.clone(), array.values.clone()));
    }
    if part != Part::Whole {
        return None;
    }
    if let Some(latent) = value.downcast::<LatentImage>() {
        return Some((latent.samples.shape().to_vec(), latent.samples.values().to_vec()));
    }
    if let Some(sigmas) = value.downcast::<Sigmas>() {
        return Some((vec![sigmas.0.len()], sigmas.0.clone()));
    }
    if let Some(mask) = value.downcast::<Mask>() {
        return Some((mask.shape().to_vec(), mask.values.to_vec()));
    }
    value.downcast::<Image>().map(|image| (image.shape().to_vec(), image.values.to_vec()))
}

/// A node that keeps what it is given.
struct Collect(Collected);

impl NodeClass for Collect {
    fn schema(&self) -> Schema {
        Schema::new(COLLECT, "testing")
            .input(Input::socket("value", "*"))
            .input(Input::text("name", ""))
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<NodeOutcome, Failure> {
        let value = call.value("value")?.clone();
        let name = call.text("name")?.to_owned();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name, value);
        Ok(NodeOutcome::default())
    }
}

/// Nobody watches.
struct Quiet;

impl Observer for Quiet {
    fn event(&self, _: RunEvent) {}
}
