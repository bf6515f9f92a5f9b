//! `/object_info`: what the node classes are, as clients read it.

use graph::{Autogrow, Catalogue, GrowingNames, Hidden, Input, Kind, Schema};
use serde_json::{Map, Value, json};

use super::tooltips;

/// All classes, in order.
pub(crate) fn all(catalogue: &Catalogue) -> Value {
    Value::Object(
        catalogue.iter().map(|(name, class)| (name.to_owned(), class_info(name, &class.schema()))).collect(),
    )
}

/// One class; an empty object if there is none of that name.
pub(crate) fn one(catalogue: &Catalogue, name: &str) -> Value {
    let found = catalogue.get(name).map(|class| (name.to_owned(), class_info(name, &class.schema())));
    Value::Object(found.into_iter().collect())
}

/// One class. The order of the inputs is that of the widgets, and `input_order` repeats it.
fn class_info(name: &str, schema: &Schema) -> Value {
    let (inputs, order) = inputs(schema);
    let outputs = &schema.outputs;
    let mut info = json!({
        "input": inputs,
        "input_order": order,
        "is_input_list": schema.takes_lists,
        "output": outputs.iter().map(|output| output.kind.as_str()).collect::<Vec<_>>(),
        "output_is_list": outputs.iter().map(|output| output.is_list).collect::<Vec<_>>(),
        "output_name": outputs.iter().map(output_name).collect::<Vec<_>>(),
        "name": name,
        "display_name": if schema.display_name.is_empty() { name } else { &schema.display_name },
        "description": schema.description,
        "python_module": if schema.module.is_empty() { "nodes" } else { &schema.module },
        "category": schema.category,
        "output_node": schema.is_output,
        "has_intermediate_output": false,
        "search_aliases": schema.search_aliases,
        "api_node": false,
    });
    if outputs.iter().any(|output| !output.tooltip.is_empty()) {
        info["output_tooltips"] =
            json!(outputs.iter().map(|output| output.tooltip.as_str()).collect::<Vec<_>>());
    }
    if outputs.iter().any(|output| output.match_template.is_some()) {
        info["output_matchtypes"] =
            json!(outputs.iter().map(|output| &output.match_template).collect::<Vec<_>>());
    }
    for (key, is_set) in [("deprecated", schema.is_deprecated), ("experimental", schema.is_experimental)] {
        if is_set {
            info[key] = json!(true);
        }
    }
    info
}

fn output_name(output: &graph::Output) -> &str {
    if output.name.is_empty() { &output.kind } else { &output.name }
}

/// `required`, `optional` and `hidden`, and the names in each. An empty group is left out, but `required`
/// is always there: some clients read it without looking.
fn inputs(schema: &Schema) -> (Value, Value) {
    let group = |is_optional: bool| -> Map<String, Value> {
        let group = schema.inputs.iter().filter(|input| input.is_optional == is_optional);
        group.map(|input| (input.name.clone(), worded(&schema.class, input))).collect()
    };
    let hidden = schema.hidden.iter().map(|(name, hidden)| (name.clone(), json!(hidden_name(hidden))));
    let groups = [("required", group(false)), ("optional", group(true)), ("hidden", hidden.collect())];
    let (mut inputs, mut order) = (Map::new(), Map::new());
    for (name, group) in groups {
        if name == "required" || !group.is_empty() {
            order.insert(name.to_owned(), group.keys().map(String::as_str).collect());
            inputs.insert(name.to_owned(), Value::Object(group));
        }
    }
    (Value::Object(inputs), Value::Object(order))
}

/// An input of a class, with words on what it is.
fn worded(class: &str, input: &Input) -> Value {
    match tooltips::of(class, &input.name) {
        Some(words) if !input.options.contains_key("tooltip") => spec(&input.clone().tooltip(words)),
        _ => spec(input),
    }
}

/// `[type, options]`; a choice has its list in the type's place, which is the form that all clients read.
fn spec(input: &Input) -> Value {
    let mut options = match json!(input.options) {
        Value::Object(options) => options,
        _ => Map::new(),
    };
    let kind = match &input.kind {
        Kind::Choice(values) => json!(values),
        Kind::DynamicChoice(choices) => {
            options.insert("options".to_owned(), choices.iter().map(dynamic_choice).collect());
            json!(input.type_name())
        }
        Kind::Autogrow(autogrow) => {
            options.insert("template".to_owned(), template(autogrow));
            json!(input.type_name())
        }
        Kind::MatchType { template, allowed } => {
            let template = json!({ "template_id": template, "allowed_types": allowed });
            options.insert("template".to_owned(), template);
            json!(input.type_name())
        }
        Kind::Int | Kind::Float | Kind::Text | Kind::Boolean | Kind::Socket(_) => json!(input.type_name()),
    };
    if options.is_empty() { json!([kind]) } else { json!([kind, options]) }
}

fn dynamic_choice((key, inputs): &(String, Vec<Input>)) -> Value {
    json!({ "key": key, "inputs": grouped(inputs) })
}

fn template(autogrow: &Autogrow) -> Value {
    let mut template =
        json!({ "input": grouped(std::slice::from_ref(&autogrow.input)), "min": autogrow.min });
    match &autogrow.names {
        GrowingNames::Counted { prefix, max } => {
            template["prefix"] = json!(prefix);
            template["max"] = json!(max);
        }
        GrowingNames::Listed(names) => template["names"] = json!(names),
    }
    template
}

fn grouped(inputs: &[Input]) -> Value {
    let group = |is_optional: bool| {
        let group = inputs.iter().filter(|input| input.is_optional == is_optional);
        Value::Object(group.map(|input| (input.name.clone(), spec(input))).collect())
    };
    json!({ "required": group(false), "optional": group(true) })
}

fn hidden_name(hidden: &Hidden) -> &str {
    match hidden {
        Hidden::Prompt => "PROMPT",
        Hidden::ExtraPngInfo => "EXTRA_PNGINFO",
        Hidden::UniqueId => "UNIQUE_ID",
        Hidden::DynamicPrompt => "DYNPROMPT",
        Hidden::AuthToken => "AUTH_TOKEN_COMFY_ORG",
        Hidden::ApiKey => "API_KEY_COMFY_ORG",
        Hidden::Input(kind) => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(schema: &Schema) -> String {
        class_info(&schema.class, schema).to_string()
    }

    #[test]
    fn inputs_keep_their_order_and_seeds_stay_whole() {
        let schema = Schema::new("KSampler", "sampling")
            .input(Input::socket("model", "MODEL").tooltip("t"))
            .input(Input::seed("my_seed"))
            .input(Input::choice("my_choice", ["euler", "heun"]))
            .input(Input::float("my_number", 8.0, 0.0, 100.0, 0.1).optional())
            .hidden("unique_id", Hidden::UniqueId)
            .output("LATENT");
        let expected = concat!(
            r#"{"input":{"required":{"model":["MODEL",{"tooltip":"t"}],"#,
            r#""my_seed":["INT",{"default":0,"min":0,"max":18446744073709551615,"control_after_generate":true}],"#,
            r#""my_choice":[["euler","heun"]]},"#,
            r#""optional":{"my_number":["FLOAT",{"default":8.0,"min":0.0,"max":100.0,"step":0.1}]},"#,
            r#""hidden":{"unique_id":"UNIQUE_ID"}},"#,
            r#""input_order":{"required":["model","my_seed","my_choice"],"optional":["my_number"],"hidden":["unique_id"]},"#,
            r#""is_input_list":false,"output":["LATENT"],"output_is_list":[false],"output_name":["LATENT"],"#,
            r#""name":"KSampler","display_name":"KSampler","description":"","python_module":"nodes","#,
            r#""category":"sampling","output_node":false,"has_intermediate_output":false,"search_aliases":[],"api_node":false}"#
        );
        assert_eq!(shown(&schema), expected);
    }

    #[test]
    fn dynamic_inputs_carry_their_templates() {
        let growing = Autogrow {
            input: Input::socket("image", "IMAGE"),
            names: GrowingNames::Counted { prefix: "image".to_owned(), max: 8 },
            min: 2,
        };
        assert_eq!(
            spec(&Input::new("images", Kind::Autogrow(Box::new(growing)))).to_string(),
            r#"["COMFY_AUTOGROW_V3",{"template":{"input":{"required":{"image":["IMAGE"]},"optional":{}},"min":2,"prefix":"image","max":8}}]"#
        );
        let choice = Kind::DynamicChoice(vec![("scale".to_owned(), vec![Input::int("width", 512, 1, 8192)])]);
        assert_eq!(
            spec(&Input::new("resize", choice)).to_string(),
            r#"["COMFY_DYNAMICCOMBO_V3",{"options":[{"key":"scale","inputs":{"required":{"width":["INT",{"default":512,"min":1,"max":8192}]},"optional":{}}}]}]"#
        );
        let matched = Kind::MatchType { template: "T".to_owned(), allowed: "*".to_owned() };
        assert_eq!(
            spec(&Input::new("value", matched)).to_string(),
            r#"["COMFY_MATCHTYPE_V3",{"template":{"template_id":"T","allowed_types":"*"}}]"#
        );
    }

    #[test]
    fn an_unknown_class_is_an_empty_object() {
        assert_eq!(one(&Catalogue::default(), "x").to_string(), "{}");
    }
}
