//! Plans for models that are not loaded: the question, and who answers it.

use std::path::PathBuf;

use meta::DeviceId;
use placement::Plan;
use serde::Deserialize;

/// Answers plan questions. It measures devices, so the program that opened them implements it.
pub trait Planner: Send + Sync {
    /// Where every block of a file would go. The answer is what `gantry plan --json` prints. It may take seconds.
    ///
    /// # Errors
    /// What is wrong with the file or the question, for people.
    fn plan(&self, file: &std::path::Path, question: &PlanQuestion) -> Result<Plan, String>;
}

/// What `POST /gantry/plan` takes; the names are those of the options of `gantry plan`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanQuestion {
    /// The file's name, as loaders list it.
    pub file: String,
    /// The kind of model folder it is in; all of them are searched without it.
    #[serde(default)]
    pub folder: Option<String>,
    /// In the allocation language.
    #[serde(default)]
    pub alloc: Option<String>,
    /// Gigabytes to move off the compute device.
    #[serde(default)]
    pub virtual_vram_gb: Option<f64>,
    /// Where they go.
    #[serde(default)]
    pub donor: Option<String>,
    /// Where the model computes.
    #[serde(default, deserialize_with = "device")]
    pub compute: Option<DeviceId>,
    /// Rows of activations per step, such as tokens of picture and text together.
    #[serde(default)]
    pub rows: Option<u64>,
    /// Bytes that activations need.
    #[serde(default)]
    pub working_bytes: Option<u64>,
}

impl PlanQuestion {
    /// The file, if it is in one of the model folders: a path from outside never is.
    pub(crate) fn find(&self, folders: &nodes::Folders) -> Option<PathBuf> {
        match &self.folder {
            Some(folder) => folders.find(folder, &self.file),
            None => folders.keys().find_map(|key| folders.find(key, &self.file)),
        }
    }
}

fn device<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<DeviceId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}
