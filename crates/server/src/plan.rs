//! Plans for models that are not loaded: the question, the answer, and why there may be none.

use std::path::{Path, PathBuf};

use device::Registry;
use meta::DeviceId;
use nodes::Studio;
use nodes::studio::SaidPlacing;
use placement::{AllocationError, Plan, PlanError};
use serde::Deserialize;
use serde_json::{Value, json};

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
    /// The size of a picture in pixels, such as `1024x768`; `1024x1024` without it.
    #[serde(default)]
    pub size: Option<String>,
    /// Frames of a video; one without it.
    #[serde(default)]
    pub frames: Option<usize>,
    /// Pictures at once; one without it.
    #[serde(default)]
    pub batch: Option<usize>,
    /// Whether every step evaluates two conditionings, as guidance does.
    #[serde(default)]
    pub cfg: bool,
}

impl PlanQuestion {
    /// The file, if it is in one of the model folders: a path from outside never is.
    pub(crate) fn find(&self, folders: &nodes::Folders) -> Option<PathBuf> {
        match &self.folder {
            Some(folder) => folders.find(folder, &self.file),
            None => folders.keys().find_map(|key| folders.find(key, &self.file)),
        }
    }

    /// Where every block of the file would go, as the job that loads it next will have it.
    pub(crate) fn answer(&self, studio: &Studio, path: &Path) -> Result<Plan, PlanFault> {
        let file = studio.open_file(path)?;
        let said = SaidPlacing {
            alloc: self.alloc.as_deref(),
            virtual_vram_gb: self.virtual_vram_gb,
            donor: self.donor.as_deref(),
            compute: self.compute,
        };
        let asked = nodes::studio::PlanQuestion {
            part: None,
            compute: self.compute,
            allocation: studio.allocation_of(said)?,
            size: self.size.as_deref().map_or(Ok((1024, 1024)), picture_size)?,
            batch: self.batch.unwrap_or(1),
            frames: self.frames.unwrap_or(1),
            cfg: self.cfg,
            text: None,
        };
        Ok(studio.plan_file(&file, &asked)?)
    }
}

/// `1024x768`: width and height in pixels.
fn picture_size(text: &str) -> Result<(usize, usize), PlanFault> {
    let sides = text
        .split_once(['x', 'X'])
        .and_then(|(width, height)| Some((width.trim().parse().ok()?, height.trim().parse().ok()?)));
    sides.ok_or_else(|| {
        PlanFault::told(format!("the size {text:?} is none; write width and height, such as 1024x768"))
    })
}

fn device<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<DeviceId>, D::Error> {
    let text: Option<String> = Option::deserialize(deserializer)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

/// Why a question has no plan: for people, and where it is known so exactly, for a page that marks the place.
#[derive(Clone, Debug)]
pub struct PlanFault {
    text: String,
    why: Option<PlanError>,
}

impl PlanFault {
    /// A fault of which there is only a text.
    #[must_use]
    pub fn told(text: impl Into<String>) -> PlanFault {
        PlanFault { text: text.into(), why: None }
    }

    /// The body of the answer: the text, the place in the allocation, an allocation that fits, and what every device
    /// has left.
    pub(crate) fn shape(&self, devices: &Registry) -> Value {
        let nearest = match &self.why {
            Some(PlanError::NoRoom { nearest, .. }) => nearest.as_deref(),
            _ => None,
        };
        let place = match &self.why {
            Some(PlanError::Allocation(error)) => place(error),
            _ => Value::Null,
        };
        let available = devices.iter().map(|device| {
            let left = device.ledger().report().available();
            json!({ "device": device.id().to_string(), "bytes": left })
        });
        json!({
            "error": self.text,
            "place": place,
            "nearest": nearest,
            "available": available.collect::<Vec<_>>(),
        })
    }
}

impl From<nodes::Error> for PlanFault {
    fn from(error: nodes::Error) -> PlanFault {
        match error {
            nodes::Error::Plan(error) => error.into(),
            other => PlanFault::told(other.to_string()),
        }
    }
}

impl From<PlanError> for PlanFault {
    fn from(error: PlanError) -> PlanFault {
        PlanFault { text: error.to_string(), why: Some(error) }
    }
}

/// Where an allocation is wrong, in characters from its start.
fn place(error: &AllocationError) -> Value {
    let before = |end: usize| error.text.char_indices().take_while(|(at, _)| *at < end).count();
    json!({
        "text": error.text,
        "start": before(error.span.start),
        "end": before(error.span.end),
        "problem": error.problem.to_string(),
        "hint": error.problem.hint(),
    })
}

#[cfg(test)]
mod tests {
    use placement::{AllocationProblem, Span};

    use super::*;

    fn wrong(text: &str, part: &str) -> PlanFault {
        let start = text.find(part).unwrap();
        PlanFault::from(PlanError::Allocation(AllocationError {
            text: text.to_owned(),
            span: Span::new(start, start + part.len()),
            problem: AllocationProblem::UnknownUnit { found: part.to_owned() },
        }))
    }

    #[test]
    fn a_place_counts_characters() {
        let shape = wrong("cpu,2gb;é:0,2xb", "xb").shape(&Registry::default());
        let found = &shape["place"];
        assert_eq!((&found["start"], &found["end"]), (&json!(13), &json!(15)));
        assert_eq!(found["problem"], "'xb' is not a unit");
        assert!(found["hint"].as_str().unwrap().starts_with("units are"));
        assert!(shape["error"].as_str().unwrap().contains("^^ 'xb' is not a unit"));
    }

    #[test]
    fn what_fits_instead_is_told() {
        let fault = PlanFault::from(PlanError::NoRoom {
            device: DeviceId::CPU,
            wanted: 3,
            weights: 3,
            ring: 0,
            working: 0,
            available: 2,
            nearest: Some("cpu,*".to_owned()),
        });
        let shape = fault.shape(&Registry::default());
        assert_eq!((&shape["nearest"], &shape["place"]), (&json!("cpu,*"), &Value::Null));
        assert_eq!(PlanFault::told("no").shape(&Registry::default())["error"], "no");
    }
}
