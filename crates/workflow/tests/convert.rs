//! What a conversion says besides the prompt: formats, titles, order, warnings, and choices in texts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod declared;

use declared::literal;
use graph::{Catalogue, Literal};
use workflow::{Converted, Format, Warning, detect, to_prompt};

fn catalogue() -> Catalogue {
    declared::catalogue(include_str!("data/classes.json"))
}

fn convert(json: &str) -> Converted {
    to_prompt(&literal(json), &catalogue()).unwrap()
}

fn inputs<'c>(converted: &'c Converted, id: &str) -> &'c graph::Map {
    converted.prompt.nodes[id].inputs.as_ref().unwrap()
}

#[test]
fn formats_are_told_apart() {
    let format = |json: &str| detect(&literal(json));
    assert_eq!(format(r#"{"1": {"class_type": "KSampler", "inputs": {}}}"#), Format::Api);
    assert_eq!(format(r#"{"prompt": {"1": {"class_type": "KSampler"}}, "client_id": "x"}"#), Format::Api);
    assert_eq!(format(r#"{"nodes": [], "links": []}"#), Format::Ui);
    assert_eq!(format(r#"{"workflow": {"nodes": []}}"#), Format::Ui);
    for other in
        ["null", "3", "[]", "{}", r#"{"nodes": {}}"#, r#"{"1": {"inputs": {}}}"#, r#"{"prompt": "a cat"}"#]
    {
        assert_eq!(format(other), Format::Unknown, "{other}");
        assert_eq!(to_prompt(&literal(other), &catalogue()), Err(workflow::Error::NotAWorkflow));
    }
}

#[test]
fn a_prompt_stays_as_it_is() {
    let prompt = r#"{"7": {"inputs": {"seed": 3, "model": ["1", 0]}, "class_type": "Unknown", "_meta": {"title": "x"}}}"#;
    let plain = convert(prompt);
    assert_eq!(plain.prompt.to_literal(), literal(prompt));
    assert_eq!((plain.workflow, plain.warnings.len()), (None, 0));
    let posted = format!(
        r#"{{"prompt": {prompt}, "extra_data": {{"extra_pnginfo": {{"workflow": {{"nodes": [], "id": 1}}}}}}}}"#
    );
    let posted = convert(&posted);
    assert_eq!(posted.prompt, plain.prompt);
    assert_eq!(posted.workflow, Some(literal(r#"{"nodes": [], "id": 1}"#)));
}

#[test]
fn the_editors_order_and_titles_are_kept() {
    let file = r#"{"nodes": [
        {"id": 5, "type": "VAELoader", "order": 2, "widgets_values": ["a"], "title": "Decoder"},
        {"id": "b", "type": "UNETLoader", "order": 0, "widgets_values": ["m", "default"]},
        {"id": 1, "type": "Unheard", "order": 1}]}"#;
    let converted = convert(file);
    assert_eq!(converted.prompt.nodes.keys().map(|id| &**id).collect::<Vec<_>>(), ["b", "1", "5"]);
    let title = |id: &str| converted.prompt.nodes[id].rest["_meta"].get("title").unwrap().as_text().unwrap();
    assert_eq!((title("5"), title("b")), ("Decoder", "UNETLoader"));
    assert_eq!(converted.workflow, Some(literal(file)));
    assert_eq!(converted.warnings, [Warning::MissingClass { node: "1".into(), class: "Unheard".into() }]);
}

#[test]
fn values_that_do_not_fit_are_named() {
    let converted = convert(
        r#"{"nodes": [
            {"id": 1, "type": "UNETLoader", "widgets_values": ["m"]},
            {"id": 2, "type": "VAELoader", "widgets_values": ["v", "w", 3, null]},
            {"id": 3, "type": "VAELoader"}]}"#,
    );
    assert_eq!(inputs(&converted, "1")["weight_dtype"], Literal::from("first"));
    assert_eq!(inputs(&converted, "3")["vae_name"], Literal::from("first"));
    let texts: Vec<String> = converted.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "node 1 (UNETLoader): no value is stored for weight_dtype; the defaults are used",
            "node 2 (VAELoader): 2 more values are stored than there are widgets; they were ignored",
        ]
    );
}

#[test]
fn links_that_lead_nowhere_are_named() {
    let converted = convert(
        r#"{"nodes": [
            {"id": 1, "type": "VAELoader", "mode": 2, "widgets_values": ["v"], "outputs": [{"type": "VAE"}]},
            {"id": 2, "type": "VAELoader", "mode": 4, "widgets_values": ["v"], "outputs": [{"type": "VAE"}]},
            {"id": 3, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 1}]},
            {"id": 4, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 2}]},
            {"id": 5, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 3}]},
            {"id": 6, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 9}]},
            {"id": 6, "type": "VAEDecode"}],
           "links": [[1, 1, 0, 3, 0, "VAE"], null, [2, 2, 0, 4, 0, "VAE"], [3, 77, 0, 5, 0, "VAE"]]}"#,
    );
    let texts: Vec<String> = converted.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "node 6: its id is used twice; the second one was left out",
            "node 3, input \"vae\": node 1 is muted; the link was left out",
            "node 4, input \"vae\": node 2 is bypassed and has no input of type VAE; the link was left out",
            "node 5, input \"vae\": the file has no node 77; the link was left out",
            "node 6, input \"vae\": the file has no link 9; the link was left out",
        ]
    );
    assert!(converted.prompt.nodes.values().all(|node| node.inputs.as_ref().unwrap().is_empty()));
}

#[test]
fn an_unknown_class_keeps_what_its_slots_name() {
    let node = |values: &str, named: &str| {
        let file = format!(
            r#"{{"nodes": [{{"id": 1, "type": "Unheard", "widgets_values": {values}{named}, "inputs": [
                {{"name": "image", "type": "IMAGE", "link": null}},
                {{"name": "seed", "type": "INT", "widget": {{"name": "seed"}}, "link": null}},
                {{"name": "size", "type": "INT", "widget": {{"name": "size"}}, "link": null}}]}}]}}"#
        );
        inputs(&convert(&file), "1").clone()
    };
    let both = graph::map([("seed", Literal::Int(4)), ("size", Literal::Int(5))]);
    assert_eq!(node("[4, 5]", ""), both);
    assert_eq!(node("[4, \"randomize\", 5]", ""), both);
    assert_eq!(node("{\"seed\": 4, \"size\": 5}", ""), both);
    assert_eq!(node("[4, 6, 7, 5]", ", \"widgets_values_named\": {\"seed\": 4, \"size\": 5}"), both);
    assert!(node("[4, 6, 7, 5]", "").is_empty());
}

#[test]
fn choices_in_a_text_are_drawn() {
    let text = |text: &str| {
        let file =
            format!(r#"{{"nodes": [{{"id": 1, "type": "CLIPTextEncode", "widgets_values": ["{text}"]}}]}}"#);
        inputs(&convert(&file), "1")["text"].as_text().unwrap().to_owned()
    };
    assert_eq!(text("a {red} boat // by day"), "a red boat ");
    assert!(["a red boat", "a blue boat"].contains(&text("a {red|blue} boat").as_str()));
    // SaveImage's text is a name of files, where braces are nothing special.
    let file = r#"{"nodes": [{"id": 1, "type": "SaveImage", "widgets_values": ["{a|b}//c"]}]}"#;
    assert_eq!(inputs(&convert(file), "1")["filename_prefix"], Literal::from("{a|b}//c"));
}

#[test]
fn a_bypassed_node_passes_what_fits() {
    // Inputs A, B; output 0 is B: the first exact type counts, not the position.
    let passed = |inputs_of_bypassed: &str, wanted: &str| {
        let file = format!(
            r#"{{"nodes": [
                {{"id": 1, "type": "One"}}, {{"id": 2, "type": "Two"}},
                {{"id": 3, "type": "Middle", "mode": 4, "inputs": [{inputs_of_bypassed}], "outputs": [{{"type": "B"}}]}},
                {{"id": 4, "type": "End", "inputs": [{{"name": "in", "type": "{wanted}", "link": 3}}]}}],
               "links": [[1, 1, 0, 3, 0, "A"], [2, 2, 0, 3, 1, "B"], [3, 3, 0, 4, 0, "B"]]}}"#
        );
        let converted = convert(&file);
        inputs(&converted, "4").get("in").and_then(graph::link_of).map(|link| link.node.to_string())
    };
    let slot = |name: &str, kind: &str, link: u8| {
        format!(r#"{{"name": "{name}", "type": "{kind}", "link": {link}}}"#)
    };
    let a_then_b = format!("{}, {}", slot("a", "A", 1), slot("b", "B", 2));
    assert_eq!(passed(&a_then_b, "B").as_deref(), Some("2"));
    assert_eq!(passed(&a_then_b, "*").as_deref(), Some("1"));
    let any_then_b = format!("{}, {}", slot("a", "*", 1), slot("b", "B", 2));
    assert_eq!(passed(&any_then_b, "B").as_deref(), Some("1"));
    let list_then_b = format!("{}, {}", slot("a", "A,b", 1), slot("b", "B", 2));
    assert_eq!(passed(&list_then_b, "B").as_deref(), Some("1"));
    assert_eq!(passed(&slot("a", "A", 1), "B"), None);
}

#[test]
fn names_of_files_are_filled_in() {
    let converted = convert(
        r#"{"nodes": [
            {"id": 1, "type": "RandomNoise", "title": "Noise", "widgets_values": [7, "fixed"]},
            {"id": 2, "type": "UNETLoader", "widgets_values": ["a/b.safetensors", "default"],
             "properties": {"Node name for S&R": "model"}},
            {"id": 3, "type": "SaveImage", "widgets_values": ["%date:yyyy%/%Noise.noise_seed%_%model.unet_name%_%width%"]}]}"#,
    );
    let name = inputs(&converted, "3")["filename_prefix"].as_text().unwrap();
    let (year, rest) = name.split_once('/').unwrap();
    assert!(year.parse::<u32>().unwrap() >= 2025, "{name}");
    assert_eq!(rest, "7_a_b.safetensors_%width%");
}

#[test]
fn values_that_are_sent_everywhere_arrive() {
    let converted = convert(
        r#"{"nodes": [
            {"id": 1, "type": "VAELoader", "widgets_values": ["v"], "outputs": [{"type": "VAE"}]},
            {"id": 2, "type": "Anything Everywhere", "inputs": [{"name": "VAE", "type": "VAE", "link": 1}]},
            {"id": 3, "type": "VAEDecode", "inputs": [
                {"name": "samples", "type": "LATENT", "link": null}, {"name": "vae", "type": "VAE", "link": null}]},
            {"id": 4, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 1}]}],
           "links": [[1, 1, 0, 2, 0, "VAE"]],
           "extra": {"ue_links": [
            {"downstream": 3, "downstream_slot": 1, "upstream": "1", "upstream_slot": 0, "controller": 2, "type": "VAE"},
            {"downstream": 3, "downstream_slot": 0, "upstream": "1", "upstream_slot": 0, "controller": 2, "type": "VAE"},
            {"downstream": 9, "downstream_slot": 7, "upstream": "x"}, 5]}}"#,
    );
    assert_eq!(converted.warnings, []);
    let link = Literal::List(vec!["1".into(), Literal::Int(0)]);
    assert_eq!(inputs(&converted, "3"), &graph::map([("vae", link.clone())]));
    assert_eq!(inputs(&converted, "4"), &graph::map([("vae", link)]));
    assert!(!converted.prompt.nodes.contains_key("2"));
}
