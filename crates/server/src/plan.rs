//! Plans for models that are not loaded: the question, the answer, and why there may be none.

use engine::{DeviceReport, FileQuestion, PlanRefusal};
use meta::DeviceId;
use placement::{AllocationError, PlanError};
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

impl From<PlanQuestion> for FileQuestion {
    fn from(asked: PlanQuestion) -> FileQuestion {
        let PlanQuestion { file, folder, alloc, virtual_vram_gb, donor, compute, size, frames, batch, cfg } =
            asked;
        FileQuestion { file, folder, alloc, virtual_vram_gb, donor, compute, size, frames, batch, cfg }
    }
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
    pub(crate) fn shape(&self, devices: &[DeviceReport]) -> Value {
        let nearest = match &self.why {
            Some(PlanError::NoRoom { nearest, .. }) => nearest.as_deref(),
            _ => None,
        };
        let place = match &self.why {
            Some(PlanError::Allocation(error)) => place(error),
            _ => Value::Null,
        };
        let available = devices
            .iter()
            .map(|device| json!({ "device": device.id.to_string(), "bytes": device.ledger.available() }));
        json!({
            "error": self.text,
            "place": place,
            "nearest": nearest,
            "available": available.collect::<Vec<_>>(),
        })
    }
}

impl From<PlanRefusal> for PlanFault {
    fn from(refusal: PlanRefusal) -> PlanFault {
        match refusal {
            PlanRefusal::Plan(error) => error.into(),
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
        let shape = wrong("cpu,2gb;é:0,2xb", "xb").shape(&[]);
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
        let shape = fault.shape(&[]);
        assert_eq!((&shape["nearest"], &shape["place"]), (&json!("cpu,*"), &Value::Null));
        assert_eq!(PlanFault::told("no").shape(&[])["error"], "no");
    }
}
