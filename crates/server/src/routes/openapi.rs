//! `/gantry/openapi.json`: our own routes, described for programs.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::wire::reply;

/// One described route.
struct Described {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// Parameters of its query, whole numbers but for an id, and none needed.
    asks: &'static [&'static str],
    /// The schema of its body.
    takes: Option<&'static str>,
    /// Its status when all is well, and the schema of the answer.
    gives: (&'static str, Option<&'static str>),
    /// Other statuses.
    fails: &'static [&'static str],
}

const ROUTES: &[Described] = &[
    Described {
        method: "get",
        path: "/gantry/now",
        summary: "Devices, models, snapshots after a number and stats with so many jobs, in one answer",
        asks: &["after", "jobs"],
        takes: None,
        gives: ("200", Some("Now")),
        fails: &["400"],
    },
    Described {
        method: "get",
        path: "/gantry/devices",
        summary: "The machine's devices and their memory",
        asks: &[],
        takes: None,
        gives: ("200", Some("Devices")),
        fails: &[],
    },
    Described {
        method: "get",
        path: "/gantry/models",
        summary: "The loaded models",
        asks: &[],
        takes: None,
        gives: ("200", Some("Models")),
        fails: &[],
    },
    Described {
        method: "patch",
        path: "/gantry/models/{id}",
        summary: "Say whether a model stays when models are asked to leave",
        asks: &[],
        takes: Some("RetentionChange"),
        gives: ("200", Some("Model")),
        fails: &["400", "404"],
    },
    Described {
        method: "delete",
        path: "/gantry/models/{id}",
        summary: "Unload a model, whatever its retention",
        asks: &[],
        takes: None,
        gives: ("204", None),
        fails: &["404"],
    },
    Described {
        method: "get",
        path: "/gantry/files",
        summary: "Model files that can be planned, and the folders they belong in",
        asks: &[],
        takes: None,
        gives: ("200", Some("Files")),
        fails: &[],
    },
    Described {
        method: "get",
        path: "/gantry/snapshots",
        summary: "Bytes in use on every device over time, oldest first; those with a higher number than after",
        asks: &["after"],
        takes: None,
        gives: ("200", Some("Snapshots")),
        fails: &["400"],
    },
    Described {
        method: "post",
        path: "/gantry/plan",
        summary: "Where every block of a model file would go, and how long a step would take",
        asks: &["faults"],
        takes: Some("PlanQuestion"),
        gives: ("200", Some("Plan")),
        fails: &["400", "404", "422", "501"],
    },
    Described {
        method: "get",
        path: "/gantry/stats",
        summary: "What runs now, and what so many of the latest jobs took, oldest first",
        asks: &["jobs"],
        takes: None,
        gives: ("200", Some("Stats")),
        fails: &["400"],
    },
    Described {
        method: "get",
        path: "/gantry/preview",
        summary: "The latest picture of what is being made, in any job or in one, as a JPEG; 204 if there is none",
        asks: &["prompt_id"],
        takes: None,
        gives: ("200", None),
        fails: &[],
    },
    Described {
        method: "post",
        path: "/gantry/loaders",
        summary: "Tell every open front end to give an allocation to its loaders of a file",
        asks: &[],
        takes: Some("LoaderPlan"),
        gives: ("200", Some("Told")),
        fails: &["400"],
    },
    Described {
        method: "get",
        path: "/gantry/openapi.json",
        summary: "This document",
        asks: &[],
        takes: None,
        gives: ("200", None),
        fails: &[],
    },
];

pub(super) async fn show(State(app): State<Arc<App>>) -> Response {
    reply::json(&document(&app.config.process.version))
}

fn document(version: &str) -> Value {
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path).or_insert_with(|| json!({}));
        path[route.method] = operation(route);
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Gantry", "version": if version.is_empty() { "0" } else { version } },
        "paths": paths,
        "components": { "schemas": schemas() },
    })
}

fn operation(route: &Described) -> Value {
    let (status, answer) = route.gives;
    let mut good = json!({ "description": "done" });
    if let Some(schema) = answer {
        good["content"] = content(schema);
    }
    let mut responses = json!({ status: good });
    for status in route.fails {
        let schema = if *status == "422" { "PlanFault" } else { "Error" };
        responses[*status] = json!({ "description": "see the error", "content": content(schema) });
    }
    let mut operation = json!({ "summary": route.summary, "responses": responses });
    let id = route.path.contains("{id}").then_some(("id", "path"));
    let parameters = id.into_iter().chain(route.asks.iter().map(|name| (*name, "query")));
    let parameters: Vec<Value> = parameters
        .map(|(name, place)| {
            let schema = match name {
                "prompt_id" => json!({ "type": "string" }),
                _ => json!({ "type": "integer", "minimum": 0 }),
            };
            json!({ "name": name, "in": place, "required": place == "path", "schema": schema })
        })
        .collect();
    if !parameters.is_empty() {
        operation["parameters"] = Value::from(parameters);
    }
    if let Some(schema) = route.takes {
        operation["requestBody"] = json!({ "required": true, "content": content(schema) });
    }
    operation
}

fn content(schema: &str) -> Value {
    json!({ "application/json": { "schema": { "$ref": format!("#/components/schemas/{schema}") } } })
}

fn schemas() -> Value {
    let mut all = Map::new();
    for part in [memory_schemas(), planning_schemas(), work_schemas()] {
        if let Value::Object(part) = part {
            all.extend(part);
        }
    }
    Value::Object(all)
}

fn memory_schemas() -> Value {
    let (text, whole, flag) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "boolean" }));
    let maybe_whole = json!({ "type": ["integer", "null"] });
    let by_device = json!({ "type": "object", "additionalProperties": { "type": "integer" } });
    json!({
        "Error": object(&[("error", text.clone())]),
        "Now": object(&[
            ("devices", list("Device")), ("models", list("Model")), ("snapshots", list("Snapshot")),
            ("stats", json!({ "$ref": "#/components/schemas/Stats" })), ("queue", list("WaitingJob")),
            ("errors", list("FailedJob")), ("preview", json!({ "type": ["integer", "null"] })),
            ("previews", json!({ "type": "object", "additionalProperties": { "type": "integer" } })),
        ]),
        "Devices": object(&[("devices", list("Device"))]),
        "Device": object(&[
            ("id", text.clone()), ("name", text.clone()), ("detail", text.clone()), ("simulated", flag.clone()),
            ("total_bytes", whole.clone()), ("free_bytes", whole.clone()), ("cached_bytes", whole.clone()),
            ("budget_bytes", whole.clone()), ("used_bytes", whole.clone()), ("reserved_bytes", whole.clone()),
            ("peak_bytes", whole.clone()), ("busy_percent", maybe_whole.clone()), ("celsius", maybe_whole), ("activations", json!({ "type": "array", "items": text })),
        ]),
        "Retention": { "type": "string", "enum": ["keep", "eject", "default"] },
        "RetentionChange": object(&[("retention", json!({ "$ref": "#/components/schemas/Retention" }))]),
        "Models": object(&[("models", list("Model"))]),
        "Model": object(&[
            ("id", whole.clone()), ("name", text.clone()), ("family", text.clone()),
            ("retention", json!({ "$ref": "#/components/schemas/Retention" })), ("bytes", by_device.clone()),
            ("plan", json!({ "$ref": "#/components/schemas/Plan" })), ("staged", flag), ("last_used", whole.clone()), ("streamed", object(&[
                ("blocks", whole.clone()), ("bytes", whole.clone()), ("stalls", whole.clone()),
                ("stalled_seconds", json!({ "type": "number" })),
            ])),
            ("profile", json!({ "$ref": "#/components/schemas/StepProfile" })),
            ("coding", json!({ "$ref": "#/components/schemas/Coding" })),
        ]),
        "StepProfile": step_profile(),
        "Coding": coding(),
        "Snapshots": object(&[("snapshots", list("Snapshot"))]),
        "Snapshot": object(&[
            ("number", whole), ("time", json!({ "type": "string", "format": "date-time" })), ("label", text),
            ("used", by_device.clone()), ("cached", by_device),
        ]),
    })
}

/// How a model's blocks are kept that its plan wants losslessly coded.
fn coding() -> Value {
    let whole = json!({ "type": "integer" });
    let mut coding = object(&[
        ("state", json!({ "type": "string", "enum": ["plain", "coding", "coded"] })),
        ("done", whole.clone()),
        ("blocks", whole),
        ("seconds", json!({ "type": "number" })),
        ("is_read", json!({ "type": "boolean" })),
    ]);
    coding["properties"]["reason"] = json!({ "type": "string" });
    coding["type"] = json!(["object", "null"]);
    coding
}

fn step_profile() -> Value {
    let (text, whole, number) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "number" }));
    let block = object(&[
        ("block", whole.clone()),
        ("device", text),
        ("begin_s", number.clone()),
        ("compute_s", number.clone()),
        ("stall_s", number.clone()),
        ("copy_s", number.clone()),
        ("copied_bytes", whole),
    ]);
    let mut profile = object(&[("seconds", number), ("blocks", json!({ "type": "array", "items": block }))]);
    profile["type"] = json!(["object", "null"]);
    profile
}

fn planning_schemas() -> Value {
    let (text, whole, number) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "number" }));
    let mut question = object(&[
        ("file", text.clone()),
        ("folder", text.clone()),
        ("alloc", text.clone()),
        ("virtual_vram_gb", number),
        ("donor", text.clone()),
        ("compute", text.clone()),
        ("size", text.clone()),
        ("frames", whole.clone()),
        ("batch", whole.clone()),
        ("cfg", json!({ "type": "boolean" })),
    ]);
    question["required"] = json!(["file"]);
    let maybe_text = json!({ "type": ["string", "null"] });
    let mut place = object(&[
        ("text", text.clone()),
        ("start", whole.clone()),
        ("end", whole.clone()),
        ("problem", text.clone()),
        ("hint", maybe_text.clone()),
    ]);
    place["type"] = json!(["object", "null"]);
    let available = object(&[("device", text.clone()), ("bytes", whole)]);
    let file = object(&[("name", text.clone()), ("bytes", json!({ "type": ["integer", "null"] }))]);
    json!({
        "PlanQuestion": question,
        "LoaderPlan": object(&[("file", text.clone()), ("alloc", text.clone()), ("compute", text.clone())]),
        "Told": object(&[("clients", json!({ "type": "integer" }))]),
        "Plan": { "type": "object", "required": ["compute", "blocks", "devices", "prediction"] },
        "PlanFault": object(&[
            ("error", text.clone()), ("place", place), ("nearest", maybe_text),
            ("available", json!({ "type": "array", "items": available })),
        ]),
        "Files": object(&[("folders", list("Folder"))]),
        "Folder": object(&[
            ("folder", text.clone()), ("places", json!({ "type": "array", "items": text })),
            ("files", json!({ "type": "array", "items": file })),
        ]),
    })
}

fn work_schemas() -> Value {
    let (text, whole, number) =
        (json!({ "type": "string" }), json!({ "type": "integer" }), json!({ "type": "number" }));
    let maybe_number = json!({ "type": ["number", "null"] });
    let timed = [("node", text.clone()), ("class", text.clone()), ("seconds", number.clone())];
    let per_step = ("seconds_per_step", maybe_number.clone());
    let steps = [
        ("steps", whole.clone()),
        per_step.clone(),
        ("median_seconds_per_step", maybe_number.clone()),
        ("first_step_seconds", maybe_number),
    ];
    let node = object(&[&timed[..], &steps].concat());
    let progress = [("value", number.clone()), ("max", number.clone()), per_step];
    let running_node = object(&[&timed[..], &progress].concat());
    let streamed =
        [("streamed_bytes", whole.clone()), ("stalls", whole.clone()), ("stalled_seconds", number.clone())];
    let model = [
        ("id", whole.clone()),
        ("name", text.clone()),
        ("family", text.clone()),
        ("compute", text.clone()),
        ("steps", whole.clone()),
        ("predicted_seconds_per_step", number.clone()),
        ("measured_seconds_per_step", number.clone()),
    ];
    let models = list("ModelRun");
    let worker = json!({ "type": ["string", "null"] });
    let job =
        [("prompt_id", text.clone()), ("worker", worker), ("seconds", number.clone()), ("models", models)];
    let ended = [("streamed_blocks", whole.clone()), ("nodes", json!({ "type": "array", "items": node }))];
    let waiting = [("prompt_id", text.clone()), ("nodes", whole.clone()), ("since_ms", number.clone())];
    let words = ["prompt_id", "node", "class", "message"].map(|name| (name, text.clone()));
    let failed = [&words[..], &[("at_ms", whole.clone())]].concat();
    let nodes = json!({ "type": "array", "items": running_node });
    let open = [("nodes", nodes), ("nodes_done", whole.clone())];
    let mut running = object(&[&job[..], &streamed, &open].concat());
    running["type"] = json!(["object", "null"]);
    json!({
        "Stats": object(&[
            ("running", json!({ "$ref": "#/components/schemas/RunningJob" })), ("workers", list("Worker")),
            ("waiting", whole.clone()),
            ("jobs", list("JobStats")), ("clients", whole.clone()), ("kept_models_missing", whole),
        ]),
        "Worker": object(&[
            ("device", text.clone()), ("running", json!({ "$ref": "#/components/schemas/RunningJob" })),
        ]),
        "RunningJob": running,
        "WaitingJob": object(&waiting),
        "FailedJob": object(&failed),
        "JobStats": object(&[&job[..], &streamed, &ended].concat()),
        "ModelRun": object(&[&model[..], &streamed].concat()),
    })
}

/// An object with these properties, all of them always there.
fn object(properties: &[(&str, Value)]) -> Value {
    let names: Vec<&str> = properties.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({ "type": "object", "required": names, "properties": properties })
}

fn list(schema: &str) -> Value {
    json!({ "type": "array", "items": { "$ref": format!("#/components/schemas/{schema}") } })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::own;
    use super::*;

    #[test]
    fn the_document_lists_exactly_the_routes_that_exist() {
        let listed = own::routes().listed;
        let exist: BTreeSet<_> =
            listed.iter().map(|(method, path)| (method.as_str().to_lowercase(), *path)).collect();
        let document = document("1");
        let mut described = BTreeSet::new();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for method in operations.as_object().unwrap().keys() {
                described.insert((method.clone(), path.as_str()));
            }
        }
        assert_eq!(described, exist);
    }

    #[test]
    fn every_schema_that_is_named_exists_and_is_used() {
        let document = document("1");
        let text = document.to_string();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        let named: BTreeSet<&str> =
            text.split("#/components/schemas/").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        assert_eq!(named, schemas.keys().map(String::as_str).collect());
    }
}
