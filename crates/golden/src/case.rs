//! One case: a workflow, the model files that it names, and what the reference's nodes gave.

use std::collections::BTreeSet;
use std::path::Path;

use graph::{Literal, Prompt, PromptNode, link_of};
use meta::Shape;
use testkit::{Golden, Report};

use crate::limits::{WORKFLOW_BYTES, read_text};
use crate::{Error, GoldenFolder};

/// Endings by which a text of a workflow is known to name a model file.
const MODEL_ENDINGS: &[&str] = &[".safetensors", ".sft", ".gguf", ".ckpt", ".pt", ".pth", ".bin"];
/// What the reference calls second texts, by the encoders that they are of.
const SECOND_TEXTS: [&str; 2] = ["conditioning_llama3", "conditioning_byt5small"];
/// What stands before the name of a learnt word in a prompt.
const EMBEDDING: &str = "embedding:";

/// A case of a folder.
pub struct Case {
    /// Its name, that of its folder.
    pub name: String,
    /// Its workflow.
    pub prompt: Prompt,
    /// The model files that it needs, as manifests call them.
    pub files: BTreeSet<String>,
    /// The nodes that name model files.
    pub loaders: BTreeSet<String>,
    /// What is to be compared, in the order of the names.
    pub wanted: Vec<WantedTensor>,
    /// Tensors of the reference that no node gives as its output: noise, schedules, steps, parts of conditionings.
    pub others: Vec<String>,
    reference: Golden,
}

/// A tensor of the reference that a node gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedTensor {
    /// Its name, such as `image.9`.
    pub name: String,
    /// The node.
    pub node: String,
    /// Which of the node's outputs.
    pub output: usize,
    /// What of it.
    pub part: Part,
}

/// A part of a node's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it: the values of a latent, of pictures or of masks.
    Whole,
    /// The tokens of an entry of a conditioning.
    Tokens(usize),
    /// The pooled vector of an entry of a conditioning.
    Pooled(usize),
    /// The second text of an entry of a conditioning.
    SecondText(usize),
}

impl Case {
    pub(crate) fn read(folder: &Path, name: &str, golden: &GoldenFolder) -> Result<Case, Error> {
        let path = folder.join("workflow_api.json");
        let text = read_text(&path, WORKFLOW_BYTES)?;
        let workflow: Literal =
            serde_json::from_str(&text).map_err(|source| Error::Json { path: path.clone(), source })?;
        let prompt = Prompt::from_literal(&workflow).ok_or(Error::NoWorkflow { path })?;
        let path = folder.join("tensors.safetensors");
        let reference =
            Golden::open(&path).map_err(|source| Error::File { path, source: Box::new(source) })?;
        let (files, loaders) = files_of(name, &prompt, golden)?;
        let (mut wanted, mut others) = (Vec::new(), Vec::new());
        for tensor in tensors(&reference) {
            match Place::of(&tensor, &prompt) {
                Place::Given(given) => wanted.push(given),
                Place::NoNode => return Err(Error::NoNode { case: name.to_owned(), tensor }),
                Place::Elsewhere => others.push(tensor),
            }
        }
        if wanted.is_empty() {
            return Err(Error::NothingToCompare { case: name.to_owned() });
        }
        Ok(Case { name: name.to_owned(), prompt, files, loaders, wanted, others, reference })
    }

    /// Compares what a node gave with the reference. Axes of length 1 make no difference: a latent picture is a latent
    /// video of one frame.
    ///
    /// # Errors
    /// The shape is another, or the reference has no such tensor.
    pub fn compare(&self, wanted: &WantedTensor, shape: &[usize], values: &[f32]) -> Result<Report, Error> {
        let wrong = |source| Error::Compare { case: self.name.clone(), source: Box::new(source) };
        let expected = self.reference.shape(&wanted.name).map_err(wrong)?;
        let own = Shape::new(shape).map_err(|_| Error::Shape {
            case: self.name.clone(),
            tensor: wanted.name.clone(),
            shape: shape.to_vec(),
        })?;
        let same = |expected: &Shape| long_axes(expected.dims()) == long_axes(shape);
        let shape = expected.filter(same).unwrap_or(own);
        self.reference.compare(&wanted.name, &shape, values).map_err(wrong)
    }
}

fn long_axes(dims: &[usize]) -> Vec<usize> {
    dims.iter().copied().filter(|axis| *axis != 1).collect()
}

/// The names of all tensors, those that are kept in pieces once, sorted.
fn tensors(reference: &Golden) -> BTreeSet<String> {
    let sampled: BTreeSet<&str> = reference.sampled_names().collect();
    let is_piece = |name: &&str| name.rsplit_once('.').is_some_and(|(whole, _)| sampled.contains(whole));
    let whole = reference.names().filter(|name| !is_piece(name));
    whole.chain(sampled.iter().copied()).map(str::to_owned).collect()
}

/// Where a tensor of the reference comes from.
enum Place {
    Given(WantedTensor),
    /// Of a node that the workflow does not have.
    NoNode,
    /// From inside a node.
    Elsewhere,
}

impl Place {
    fn of(name: &str, prompt: &Prompt) -> Place {
        let mut words = name.split('.');
        let (kind, node, entry) = (words.next().unwrap_or_default(), words.next(), words.next());
        let entry = entry.map_or(Some(0), |entry| entry.parse().ok());
        let output = kind.strip_prefix("output").and_then(|number| number.parse().ok());
        let (node, output, part) = match (kind, node, output, entry) {
            ("latent", None, ..) => match samplers(prompt).last {
                Some(node) => (node, 0, Part::Whole),
                None => return Place::NoNode,
            },
            ("stage1", Some("latent"), ..) => match samplers(prompt).first {
                Some(node) => (node, 0, Part::Whole),
                None => return Place::NoNode,
            },
            ("image" | "encoded", Some(node), ..) => (node, 0, Part::Whole),
            ("cond", Some(node), _, Some(entry)) => (node, 0, Part::Tokens(entry)),
            ("pooled", Some(node), _, Some(entry)) => (node, 0, Part::Pooled(entry)),
            (kind, Some(node), _, Some(entry)) if SECOND_TEXTS.contains(&kind) => {
                (node, 0, Part::SecondText(entry))
            }
            (_, Some(node), Some(output), _) => (node, output, Part::Whole),
            _ => return Place::Elsewhere,
        };
        if !prompt.nodes.contains_key(node) {
            return Place::NoNode;
        }
        Place::Given(WantedTensor { name: name.to_owned(), node: node.to_owned(), output, part })
    }
}

/// The samplers of a workflow that has one, or two of which one goes on where the other ended.
#[derive(Default)]
struct Samplers<'a> {
    /// The one that the other goes on from, if there are two.
    first: Option<&'a str>,
    /// The one whose latent is the result.
    last: Option<&'a str>,
}

fn samplers(prompt: &Prompt) -> Samplers<'_> {
    let is_sampler = |node: &PromptNode| {
        let class = node.class_type.as_deref().unwrap_or_default();
        matches!(class, "KSampler" | "KSamplerAdvanced" | "SamplerCustom" | "SamplerCustomAdvanced")
    };
    let all = prompt.nodes.iter().filter(|(_, node)| is_sampler(node));
    let all: Vec<&str> = all.map(|(id, _)| id.as_ref()).collect();
    let needed_by = |node: &str, user: &str| node != user && ancestors(prompt, user).contains(node);
    match all.as_slice() {
        [only] => Samplers { first: None, last: Some(only) },
        [a, b] if needed_by(a, b) => Samplers { first: Some(a), last: Some(b) },
        [a, b] if needed_by(b, a) => Samplers { first: Some(b), last: Some(a) },
        _ => Samplers::default(),
    }
}

/// Every node that a node needs, itself among them.
fn ancestors<'a>(prompt: &'a Prompt, node: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        let Some((id, about)) = prompt.nodes.get_key_value(node) else { continue };
        if !found.insert(id.as_ref()) {
            continue;
        }
        for link in about.inputs.iter().flat_map(|inputs| inputs.values()).filter_map(link_of) {
            // The prompt's own text of the id lives as long as the prompt does.
            open.extend(prompt.nodes.get_key_value(link.node.as_ref()).map(|(id, _)| id.as_ref()));
        }
    }
    found
}

/// Names of files, and of the nodes that name them.
type Named = (BTreeSet<String>, BTreeSet<String>);

/// The files that a workflow names, as manifests call them, and the nodes that do.
fn files_of(case: &str, prompt: &Prompt, golden: &GoldenFolder) -> Result<Named, Error> {
    let (mut files, mut loaders) = (BTreeSet::new(), BTreeSet::new());
    for (id, node) in &prompt.nodes {
        let texts = node.inputs.iter().flat_map(|inputs| inputs.values()).filter_map(Literal::as_text);
        for text in texts {
            let has_name = |file: &&str| file.split_once('/').is_some_and(|(_, name)| name == text);
            let named: Vec<&str> = golden.files().filter(has_name).collect();
            if named.is_empty() && MODEL_ENDINGS.iter().any(|ending| text.ends_with(ending)) {
                let (case, node, file) = (case.to_owned(), id.to_string(), text.to_owned());
                return Err(Error::NoManifest { case, node, file });
            }
            if !named.is_empty() {
                loaders.insert(id.to_string());
            }
            files.extend(named.into_iter().chain(embeddings(text, golden)).map(str::to_owned));
        }
    }
    Ok((files, loaders))
}

/// The files of the learnt words that a prompt names.
fn embeddings<'a>(text: &str, golden: &'a GoldenFolder) -> impl Iterator<Item = &'a str> {
    let words: BTreeSet<String> = text
        .split(EMBEDDING)
        .skip(1)
        .map(|rest| {
            rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/')).collect()
        })
        .collect();
    golden.files().filter(move |file| {
        let name = file.strip_prefix("embeddings/");
        let stem = name.map(|name| name.rsplit_once('.').map_or(name, |(stem, _)| stem));
        name.is_some_and(|name| words.contains(name)) || stem.is_some_and(|stem| words.contains(stem))
    })
}
