//! Families that came after the reference implementation: values that diffusers and transformers computed, as folders of
//! `forward`, `text`, `vae`, `run`, `schedules.json` and `cases.json`. A small part of each comes with this crate; where the
//! whole lies beside the checkout, it is looked at, too.

use std::fs;
use std::path::{Path, PathBuf};

use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::detect;
use models::diffusion::{Diffusion, Evaluation};
use models::text::{EncodeOptions, Encoded, PictureTokens, PromptOptions, TextModel, TextRecipe};
use models::vision::{LanguageTower, VisionModel};
use residency::Session;
use sampling::{
    Conditioning, Latent, LatentShape, ModelSampling, Observer, Request, Sampler, Scheduler, Step, StepPlan,
    Tuning, sample,
};
use serde_json::Value;
use tensor::Tensor;
use testkit::{Golden, Report};

use super::{checkpoint, open_on_cpu};

/// Twice what the README of the values expects: processors add in another order.
pub(crate) const TOLERANCE: f64 = 2e-5;

/// The values of one family.
pub(crate) struct Set {
    folder: PathBuf,
    /// What was computed.
    pub(crate) cases: Value,
}

impl Set {
    fn open(folder: PathBuf) -> Set {
        let cases = serde_json::from_slice(&fs::read(folder.join("cases.json")).unwrap()).unwrap();
        Set { folder, cases }
    }

    /// The part that comes with this crate, then the whole if it is there.
    pub(crate) fn all(family: &str) -> Vec<Set> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let whole = root.join("../../../shared/golden/newer").join(family);
        let mut sets = vec![Set::open(root.join("tests/data/newer").join(family))];
        if whole.is_dir() {
            sets.push(Set::open(whole));
        } else {
            eprintln!(
                "\n==> FEWER REFERENCE VALUES: there is no shared/golden/newer/{family} beside the checkout\n"
            );
        }
        sets
    }

    /// The values of a kind, if this set has any.
    pub(crate) fn find(&self, kind: &str) -> Option<Golden> {
        let path = self.folder.join(format!("{kind}.safetensors"));
        path.is_file().then(|| Golden::open(path).unwrap())
    }

    pub(crate) fn values(&self, kind: &str) -> Golden {
        self.find(kind).unwrap()
    }

    /// Lists of levels.
    pub(crate) fn schedules(&self) -> Value {
        serde_json::from_slice(&fs::read(self.folder.join("schedules.json")).unwrap()).unwrap()
    }
}

/// Compares values with those of a name, if there are any. Whether there are.
pub(crate) fn close(golden: &Golden, name: &str, values: &[f32]) -> bool {
    let has = golden.names().any(|known| known == name);
    if has {
        let (_, want) = golden.tensor(name).unwrap();
        Report::new(name, values, &want).assert(TOLERANCE);
    }
    has
}

/// A stored tensor on the host.
pub(crate) fn array(golden: &Golden, name: &str) -> Array {
    let (shape, values) = golden.tensor(name).unwrap();
    Array { shape: shape.dims().to_vec(), values }
}

/// A stored tensor on a device.
pub(crate) fn tensor(golden: &Golden, session: &Session, name: &str) -> Tensor {
    let (shape, values) = golden.tensor(name).unwrap();
    session.lane().unwrap().tensor(shape, &values).unwrap()
}

/// A stored latent.
pub(crate) fn latent(golden: &Golden, name: &str) -> Latent {
    let (shape, values) = golden.tensor(name).unwrap();
    Latent::new(shape.dims().to_vec(), values).unwrap()
}

/// A number of a stored tensor of one value.
pub(crate) fn number(golden: &Golden, name: &str) -> f32 {
    golden.tensor(name).unwrap().1[0]
}

/// Compares the levels of a flow model with the lists of a node's scheduler.
pub(crate) fn check_simple_schedules(set: &Set, sampling: &ModelSampling) {
    let lists = set.schedules();
    let lists = lists["comfyui"]["simple"].as_object().unwrap();
    assert!(lists.len() > 1);
    for (steps, want) in lists {
        let want: Vec<f32> = want.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect();
        let plan = StepPlan::new(steps.parse().unwrap(), 1.0);
        let got = plan.sigmas(sampling, Scheduler::Simple, Sampler::Euler).unwrap();
        assert_eq!(got.len(), want.len());
        Report::new(format!("{steps} steps"), &got, &want).assert(1e-6);
    }
}

/// A text encoder with what it looks at pictures by.
pub(crate) struct Reader {
    pub(crate) model: TextModel,
    pub(crate) session: Session,
    tower: Box<dyn VisionModel>,
    tower_session: Session,
    recipe: &'static TextRecipe,
}

impl Reader {
    /// The encoder of a file as a loader of this type uses it.
    pub(crate) fn new(file: &str, recipe: &str) -> Reader {
        let checkpoint = checkpoint(file);
        let detected = detect(&checkpoint);
        let model = TextModel::read_all(&checkpoint, &detected).unwrap().remove(0);
        let recipe = TextRecipe::find(recipe, &[model.encoder.key()]).unwrap();
        let mut parts = detected.parts.iter();
        let text = parts.clone().find(|part| part.role == detect::Role::Text).unwrap();
        let vision = parts.find(|part| part.role == detect::Role::Vision).unwrap();
        let manifest = model.encoder.manifest(&checkpoint).unwrap();
        assert_eq!(text.unused(&checkpoint, &manifest), [""; 0]);
        let Some(detect::Reader::Vision(family)) = vision.reader else { panic!("{vision:?}") };
        let tower = (family.read)(&checkpoint, vision).unwrap();
        let tower_manifest = tower.manifest(&checkpoint).unwrap();
        assert_eq!(vision.unused(&checkpoint, &tower_manifest), [""; 0]);
        let (session, tower_session) = (open_on_cpu(manifest), open_on_cpu(tower_manifest));
        Reader { model, session, tower, tower_session, recipe }
    }

    /// A picture `[height, width, 3]` as the encoder reads it.
    pub(crate) fn look(&self, picture: &Array) -> PictureTokens {
        let tower: &dyn LanguageTower = self.tower.tower().unwrap();
        let size = [picture.shape[0], picture.shape[1]];
        assert_eq!(tower.fitting_size(size), size);
        let seen = tower.look(&self.tower_session, size, &picture.values).unwrap();
        PictureTokens { values: seen.tokens, deep: seen.deep, grid: Some(seen.grid) }
    }

    /// The ids of a conversation about a prompt, pictures as one token each, and what is encoded.
    pub(crate) fn encode(&self, conversation: &str, pictures: &[PictureTokens]) -> (Vec<u32>, Encoded) {
        self.encode_with(conversation, pictures, false)
    }

    /// The same with or without the pictures' own tokens.
    pub(crate) fn encode_with(
        &self,
        conversation: &str,
        pictures: &[PictureTokens],
        leaves_out_pictures: bool,
    ) -> (Vec<u32>, Encoded) {
        let how = &self.recipe.encoders[0];
        let options = PromptOptions::default();
        let mut tokens = how.tokenize(&*self.model.tokenizer, conversation, options, how.tokens);
        let ids = tokens.ids(0).unwrap();
        if let Some(place) = how.picture {
            let parts: Vec<usize> = pictures.iter().map(|picture| picture.values.dim(0)).collect();
            tokens.show_pictures(place, &parts);
        }
        let options = EncodeOptions { pictures, leaves_out_pictures, ..how.options() };
        let encoded = self.model.encoder.encode(&self.session, &tokens, options).unwrap();
        (ids, (self.recipe.join)(vec![Some(encoded)]).unwrap())
    }

    /// The same of a prompt in the family's own conversation.
    pub(crate) fn encode_prompt(&self, prompt: &str) -> (Vec<u32>, Encoded) {
        self.encode(&self.conversation(prompt), &[])
    }

    /// The family's own conversation about a prompt.
    pub(crate) fn conversation(&self, prompt: &str) -> String {
        self.recipe.encoders[0].reads.of(prompt, false).unwrap()
    }

    /// A prompt as a conditioning.
    pub(crate) fn cond(&self, prompt: &str) -> Cond {
        cond_of(&self.encode_prompt(prompt).1)
    }
}

/// What was encoded as a conditioning.
pub(crate) fn cond_of(encoded: &Encoded) -> Cond {
    let text = Array { shape: encoded.cond.dims().to_vec(), values: encoded.cond.to_vec().unwrap() };
    Cond::text(text, None)
}

/// Checks the ids of a prompt, without what fills it up.
pub(crate) fn check_ids(golden: &Golden, name: &str, got: &[u32]) {
    let bytes = golden.bytes(&format!("{name}.ids")).unwrap();
    let (words, _) = bytes.as_chunks::<8>();
    let want: Vec<u32> = words.iter().map(|word| i64::from_le_bytes(*word) as u32).collect();
    assert_eq!(got[..want.len().min(got.len())], want, "{name}");
}

/// One evaluation of a model.
pub(crate) fn evaluate(
    model: &dyn Diffusion,
    session: &Session,
    cond: &Cond,
    (latent, time): (&Tensor, f32),
    times: &[f32],
) -> Vec<f32> {
    let scene = Scene { times, ..Scene::empty(LatentShape::sized(latent.dims()).unwrap()) };
    let run = model.start(session, &[Conditioned::whole(cond)], &scene).unwrap();
    run.forward(&[Evaluation::new(0, latent, time)]).unwrap()[0].to_vec().unwrap()
}

/// Compares each step of a run.
struct Compared<'a> {
    golden: &'a Golden,
    prefix: &'a str,
    steps: usize,
}

impl Observer for Compared<'_> {
    fn step(&mut self, step: &Step<'_>) {
        let name = |what: &str| format!("{}step{:02}.{what}", self.prefix, step.index);
        close(self.golden, &name("x"), step.x.values());
        close(self.golden, &name("x0"), step.denoised.values());
        self.steps += 1;
    }
}

/// Runs euler with guidance from the stored noise, compares every stored step and the end, and gives the latent in the
/// autoencoder's scale.
pub(crate) fn check_run(
    model: &dyn Diffusion,
    session: &Session,
    conds: [&Cond; 2],
    (golden, prefix): (&Golden, &str),
    (cfg, sigmas): (f64, Vec<f32>),
) -> Latent {
    let noise = latent(golden, &format!("{prefix}noise"));
    let (_, want) = golden.tensor(&format!("{prefix}sigmas")).unwrap();
    Report::new("sigmas", &sigmas, &want).assert(1e-6);
    let sampling = model.sampling();
    let shape = noise.shape().to_vec();
    let scene = Scene { times: &sigmas, ..Scene::empty(LatentShape::sized(&shape).unwrap()) };
    let run = model.start(session, &conds.map(Conditioned::whole), &scene).unwrap();
    let lane = session.lane().unwrap();
    let mut calls = 0;
    let mut predict = |x: &Latent, sigma: f32, wanted: &[Conditioning]| {
        let input = lane.tensor(meta::Shape::new(&shape).unwrap(), x.values()).unwrap();
        let place = |conditioning: &Conditioning| usize::from(*conditioning == Conditioning::Negative);
        let evaluations: Vec<Evaluation<'_>> =
            wanted.iter().map(|it| Evaluation::new(place(it), &input, sampling.timestep(sigma))).collect();
        let outputs = run.forward(&evaluations).unwrap();
        let denoised = outputs.iter().zip(wanted).map(|(output, conditioning)| {
            let values = output.to_vec().unwrap();
            let side = ["v_cond", "v_uncond"][place(conditioning)];
            close(golden, &format!("{prefix}step{calls:02}.{side}"), &values);
            sampling.calculate_denoised(sigma, &Latent::new(shape.clone(), values).unwrap(), x)
        });
        let denoised = denoised.collect();
        calls += 1;
        Ok(denoised)
    };
    let request = Request {
        sampling: &sampling,
        format: model.latent(),
        sampler: Sampler::Euler,
        tuning: Tuning::default(),
        latent: Latent::zeros(&shape),
        noise,
        mask: None,
        keeps_clean: false,
        cfg,
        seed: 0,
        sigmas: sigmas.clone(),
    };
    let mut compared = Compared { golden, prefix, steps: 0 };
    let result = sample(&request, &mut predict, &mut compared).unwrap();
    assert_eq!(compared.steps, sigmas.len() - 1);
    let end = model.latent().to_model(&result).unwrap();
    assert!(close(golden, &format!("{prefix}x_final"), end.values()));
    close(golden, &format!("{prefix}latent"), result.values());
    result
}
