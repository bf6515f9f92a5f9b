//! Progress bars, on a terminal only: into a pipe nothing is drawn.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use engine::{Event, EventSink, JobEvent};
use graph::{Catalogue, Literal, NodeId, Prompt};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::commands::is_quiet;

/// Columns of a bar.
const STEPS: &str = "{msg} {bar:24} {pos}/{len} {per_sec} {eta} left";
const BYTES: &str = "{msg} {bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";

/// The bars of a terminal, and what is written between them.
#[derive(Clone, Debug)]
pub(crate) struct Bars(MultiProgress);

impl Default for Bars {
    fn default() -> Bars {
        let bars = MultiProgress::new();
        if is_quiet() {
            bars.set_draw_target(ProgressDrawTarget::hidden());
        }
        Bars(bars)
    }
}

impl Bars {
    /// A bar that counts steps.
    pub(crate) fn steps(&self, what: &str, length: u64) -> ProgressBar {
        self.add(what, length, STEPS)
    }

    /// A bar that counts bytes.
    pub(crate) fn bytes(&self, what: &str, length: u64) -> ProgressBar {
        self.add(what, length, BYTES)
    }

    fn add(&self, what: &str, length: u64, template: &str) -> ProgressBar {
        let bar = self.0.add(ProgressBar::new(length));
        // The templates are constants, and a test reads them.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.with_message(what.to_owned())
    }

    /// Writes while the bars are out of the way.
    pub(crate) fn between<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}

/// The bar of the node that runs, one for each job.
#[derive(Debug)]
pub(crate) struct NodeBar {
    bars: Bars,
    /// What nodes are called, where somebody called them something.
    titles: HashMap<NodeId, String>,
    /// What classes are called where nobody did.
    names: HashMap<String, String>,
    /// By job the bar, and of which node it is.
    open: Mutex<HashMap<String, (NodeId, ProgressBar)>>,
}

impl NodeBar {
    /// A bar among others, for nodes that may have titles and have the names of their classes otherwise.
    pub(crate) fn new(bars: Bars, catalogue: &Catalogue, prompt: Option<&Prompt>) -> NodeBar {
        let title = |node: &graph::PromptNode| {
            let title = node.rest.get("_meta").and_then(|meta| meta.get("title")).and_then(Literal::as_text);
            title.map(str::to_owned)
        };
        let titled = prompt.into_iter().flat_map(|prompt| &prompt.nodes);
        let titles = titled.filter_map(|(id, node)| Some((id.clone(), title(node)?))).collect();
        let named =
            catalogue.iter().map(|(class, node)| (class.to_owned(), node.schema().display_name.clone()));
        let names = named.filter(|(_, name)| !name.is_empty()).collect();
        NodeBar { bars, titles, names, open: Mutex::default() }
    }

    /// A node is so far, of the only job that there is.
    pub(crate) fn at(&self, identity: &graph::Identity, value: f64, max: f64) {
        self.at_of("", identity, value, max);
    }

    /// A node of a job is so far.
    fn at_of(&self, job: &str, identity: &graph::Identity, value: f64, max: f64) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let length = max.max(0.0) as u64;
        let is_shown =
            |(node, bar): &(NodeId, ProgressBar)| *node == identity.node && bar.length() == Some(length);
        if !open.get(job).is_some_and(is_shown) {
            if let Some((_, bar)) = open.remove(job) {
                bar.finish_and_clear();
            }
            let bar = self.bars.steps(self.title(identity), length);
            open.insert(job.to_owned(), (identity.node.clone(), bar));
        }
        if let Some((_, bar)) = open.get(job) {
            bar.set_position(value.max(0.0) as u64);
        }
    }

    /// What a node is called: its title, or the name of its class.
    fn title<'a>(&'a self, identity: &'a graph::Identity) -> &'a str {
        let named = self.titles.get(&identity.real).or_else(|| self.names.get(&identity.class));
        named.unwrap_or(&identity.class)
    }

    /// Takes the bar of the only job away.
    pub(crate) fn end(&self) {
        self.end_of("");
    }

    fn end_of(&self, job: &str) {
        if let Some((_, bar)) = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(job) {
            bar.finish_and_clear();
        }
    }

    /// Writes while the bar is out of the way.
    pub(crate) fn between<T>(&self, write: impl FnOnce() -> T) -> T {
        self.bars.between(write)
    }
}

/// What a server's terminal shows of its jobs.
impl EventSink for NodeBar {
    fn event(&self, event: Event) {
        let Event::Job { prompt_id, event, .. } = event else { return };
        match event {
            JobEvent::Progress(progress) => {
                self.at_of(&prompt_id, &progress.identity, progress.value, progress.max);
            }
            JobEvent::Finished(_) | JobEvent::Ended { .. } => self.end_of(&prompt_id),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_their_titles_or_the_names_of_their_classes() {
        let mut catalogue = Catalogue::default();
        let machine = crate::machine::Machine::for_tests();
        let folders = runtime::Folders::default();
        let runtime = crate::serving::runtime(&machine, folders, None, runtime::Settings::default()).unwrap();
        for (_, class) in nodes::catalogue(&runtime).iter() {
            catalogue.add_shared(std::sync::Arc::clone(class));
        }
        let text = r#"{"3": {"class_type": "KSampler", "inputs": {}, "_meta": {"title": "Draw it"}},
            "4": {"class_type": "KSamplerAdvanced", "inputs": {}}, "5": {"class_type": "Unknown", "inputs": {}}}"#;
        let literal: Literal = serde_json::from_str(text).unwrap();
        let prompt = workflow::to_prompt(&literal, &catalogue).unwrap().prompt;
        let bar = NodeBar::new(Bars::default(), &catalogue, Some(&prompt));
        let title = |id: &str, class: &str| {
            let node: NodeId = id.into();
            let (display, real) = (node.clone(), node.clone());
            let identity = graph::Identity { node, display, parent: None, real, class: class.to_owned() };
            bar.title(&identity).to_owned()
        };
        assert_eq!(title("3", "KSampler"), "Draw it");
        assert_eq!(title("4", "KSamplerAdvanced"), "KSampler (Advanced)");
        assert_eq!(title("5", "Unknown"), "Unknown");
    }

    #[test]
    fn the_templates_can_be_read() {
        for template in [STEPS, BYTES] {
            ProgressStyle::with_template(template).unwrap();
        }
    }
}
