//! Constants, switches, text and arithmetic.

use graph::{Inputs, Literal};

use crate::workbench::{Workbench, failure, inputs, latent, literal, value};

fn text(bench: &Workbench, class: &str, inputs: Inputs) -> String {
    bench.literal(class, inputs).as_text().unwrap().to_owned()
}

#[test]
fn constants_pass_as_they_are() {
    let bench = Workbench::new();
    let cases: [(&str, Literal); 5] = [
        ("PrimitiveInt", (-5).into()),
        ("PrimitiveFloat", 0.5.into()),
        ("PrimitiveString", "a".into()),
        ("PrimitiveStringMultiline", "a\nb".into()),
        ("PrimitiveBoolean", true.into()),
    ];
    for (class, constant) in cases {
        assert_eq!(bench.literal(class, inputs().with("value", constant.clone())), constant, "{class}");
    }
}

#[test]
fn anything_is_shown_as_python_prints_it() {
    let bench = Workbench::new();
    let shown = |value: graph::Value| {
        let outcome = bench.run("PreviewAny", inputs().with("source", Literal::Null)).unwrap();
        assert!(outcome.ui.is_some());
        let mut given = inputs();
        given.values.insert("source".to_owned(), vec![value]);
        let ui = bench.run("PreviewAny", given).unwrap().ui.unwrap();
        ui["text"].as_list().unwrap()[0].as_text().unwrap().to_owned()
    };
    assert_eq!(shown("x \"y\"".into()), "x \"y\"");
    assert_eq!(shown(7.into()), "7");
    assert_eq!(shown(1e-7.into()), "1e-07");
    assert_eq!(shown(2.0.into()), "2.0");
    assert_eq!(shown(f64::INFINITY.into()), "inf");
    assert_eq!(shown(true.into()), "True");
    assert_eq!(shown(Literal::Null.into()), "None");
    let list: Literal = serde_json::from_str(r#"{"a": [1, {}], "b": null}"#).unwrap();
    assert_eq!(shown(list.into()), "{\n    \"a\": [\n        1,\n        {}\n    ],\n    \"b\": null\n}");
    assert!(shown(value(&latent(&[1, 2, 3, 4], |_| 0.0))).contains("[1, 2, 3, 4]"));
}

#[test]
fn a_switch_asks_only_for_the_side_it_passes() {
    let bench = Workbench::new();
    let class = |name: &str| std::sync::Arc::clone(bench.catalogue.get(name).unwrap());
    let unknown = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (name, flag, linked, wanted) in [
        ("ComfySwitchNode", true, &["on_false", "on_true"][..], "on_true"),
        ("ComfySwitchNode", false, &["on_false", "on_true"], "on_false"),
        ("ComfySoftSwitchNode", true, &["on_false", "on_true"], "on_true"),
        ("ComfySoftSwitchNode", true, &["on_false"], "on_false"),
        ("ComfySoftSwitchNode", false, &["on_true"], "on_true"),
    ] {
        let mut call = bench.call(name, inputs().with("switch", flag));
        call.unknown = unknown(linked);
        assert_eq!(class(name).needs(&call).unwrap(), [wanted], "{name} {flag} {linked:?}");
        call.unknown.clear();
        call.inputs = call.inputs.with(wanted, "it");
        assert!(class(name).needs(&call).unwrap().is_empty());
        assert_eq!(literal(&class(name).run(&call).unwrap(), 0), "it".into());
    }
    assert!(failure(bench.run("ComfySwitchNode", inputs().with("switch", true))).contains("on_true"));
    let schema = class("ComfySwitchNode").schema();
    assert!(schema.find("on_true").unwrap().is_lazy() && !schema.find("on_true").unwrap().is_optional);
    assert_eq!(schema.inputs[0].name, "switch");
}

#[test]
fn menus_of_ones_own_give_the_entry_and_its_number() {
    let bench = Workbench::new();
    let chosen = bench.run("CustomCombo", inputs().with("choice", "b").with("index", 3)).unwrap();
    assert_eq!((literal(&chosen, 0), literal(&chosen, 1)), ("b".into(), 3.into()));
    let chosen = bench.run("CustomCombo", inputs().with("choice", "b")).unwrap();
    assert_eq!(literal(&chosen, 1), 0.into());
    let size = |ratio: &str, pixels: f64, multiple: i64| {
        let given =
            inputs().with("aspect_ratio", ratio).with("megapixels", pixels).with("multiple", multiple);
        let outcome = bench.run("ResolutionSelector", given).unwrap();
        (literal(&outcome, 0).as_int().unwrap(), literal(&outcome, 1).as_int().unwrap())
    };
    assert_eq!(size("1:1 (Square)", 1.0, 8), (1024, 1024));
    assert_eq!(size("16:9 (Widescreen)", 0.9, 32), (1280, 736));
    assert_eq!(size("9:16 (Portrait Widescreen)", 1.0, 8), (768, 1368));
}

#[test]
fn texts_are_changed_as_in_python() {
    let bench = Workbench::new();
    let of = |string: &str| inputs().with("string", string);
    let joined = inputs().with("string_a", "a").with("string_b", "b").with("delimiter", ", ");
    assert_eq!(text(&bench, "StringConcatenate", joined), "a, b");
    let part = |start: i64, end: i64| {
        text(&bench, "StringSubstring", of("grün😀!").with("start", start).with("end", end))
    };
    assert_eq!(
        (part(2, 5), part(-2, 99), part(-99, 2), part(4, 2)),
        ("ün😀".into(), "😀!".into(), "gr".into(), String::new())
    );
    assert_eq!(bench.literal("StringLength", of("grün😀")), 5.into());
    let cased = |string: &str, mode: &str| text(&bench, "CaseConverter", of(string).with("mode", mode));
    assert_eq!(cased("straße", "UPPERCASE"), "STRASSE");
    assert_eq!(cased("hELLO wORLD", "Capitalize"), "Hello world");
    assert_eq!(cased("they're 2nd-best", "Title Case"), "They'Re 2Nd-Best");
    let trimmed = |mode: &str| text(&bench, "StringTrim", of(" \t x \n").with("mode", mode));
    assert_eq!(
        (trimmed("Both"), trimmed("Left"), trimmed("Right")),
        ("x".into(), "x \n".into(), " \t x".into())
    );
    assert_eq!(text(&bench, "StringReplace", of("aaa").with("find", "a").with("replace", "bb")), "bbbbbb");
    let contains = |part: &str, is_sensitive: bool| {
        bench.literal(
            "StringContains",
            of("Hello").with("substring", part).with("case_sensitive", is_sensitive),
        )
    };
    assert_eq!((contains("hell", true), contains("hell", false)), (false.into(), true.into()));
    let compare = |mode: &str| {
        let given = inputs().with("string_a", "Hello").with("string_b", "hello").with("mode", mode);
        bench.literal("StringCompare", given.with("case_sensitive", false))
    };
    assert_eq!(
        (compare("Equal"), compare("Starts With"), compare("Ends With")),
        (true.into(), true.into(), true.into())
    );
}

#[test]
fn patterns_find_and_replace_as_in_python() {
    let bench = Workbench::new();
    let of = |string: &str, pattern: &str| inputs().with("string", string).with("regex_pattern", pattern);
    let found = |string: &str, pattern: &str| bench.literal("RegexMatch", of(string, pattern)) == true.into();
    assert!(found("Hello", "^h") && !found("Hello", "(") && found("a\n", "a$") && !found("a\n", r"a\Z"));
    assert!(found("price: 10", r"(?<=: )\d+") && !found("x10", r"(?<=: )\d+") && found("abab", r"(ab)\1"));
    assert!(found("a$", r"[$]") && found("a$b", r"a\$b"));
    let extract = |pattern: &str, mode: &str, group: i64| {
        text(&bench, "RegexExtract", of("a1 b2 c3", pattern).with("mode", mode).with("group_index", group))
    };
    assert_eq!(extract(r"\d", "First Match", 1), "1");
    assert_eq!(extract(r"\d", "All Matches", 1), "1\n2\n3");
    assert_eq!(extract(r"([a-z])(\d)", "All Matches", 1), "a\nb\nc");
    assert_eq!(extract(r"([a-z])(\d)", "First Group", 2), "1");
    assert_eq!(extract(r"([a-z])(\d)", "All Groups", 2), "1\n2\n3");
    assert_eq!(extract(r"([a-z])(\d)", "All Groups", 3), "");
    assert_eq!(extract("(", "First Match", 1), "");
    let replaced = |pattern: &str, replace: &str, count: i64| {
        bench.run("RegexReplace", of("a1 b2", pattern).with("replace", replace).with("count", count))
    };
    let replaced_text = |pattern: &str, replace: &str, count: i64| {
        literal(&replaced(pattern, replace, count).unwrap(), 0).as_text().unwrap().to_owned()
    };
    assert_eq!(replaced_text(r"(\w)(\d)", r"\2\1", 0), "1a 2b");
    assert_eq!(replaced_text(r"(?P<letter>[a-z])", r"<\g<letter>\g<1>>", 1), "<aa>1 b2");
    assert_eq!(replaced_text(r"\d", r"\\\n$0", 0), "a\\\n$0 b\\\n$0");
    assert!(failure(replaced("(", "", 0)).contains("pattern"));
    assert!(failure(replaced("a", r"\3", 0)).contains("\\3"));
    assert!(failure(replaced("a", r"\q", 0)).contains("\\q"));
    let endless = of(&"a".repeat(40), r"^(?:(a|aa)+)(?=b)\1$");
    assert!(bench.run("RegexMatch", endless).is_err(), "some patterns would search for years");
}

#[test]
fn expressions_give_three_kinds_of_number() {
    let bench = Workbench::new();
    let given = inputs().with("expression", "floor(a * b) + 1").with("values.a", 2).with("values.b", 1.75);
    let outcome = bench.run("ComfyMathExpression", given).unwrap();
    assert_eq!([0, 1, 2].map(|slot| literal(&outcome, slot)), [4.0.into(), 4.into(), true.into()]);
    let given = inputs().with("expression", "a > 3").with("values.a", 2);
    let outcome = bench.run("ComfyMathExpression", given).unwrap();
    assert_eq!([0, 1, 2].map(|slot| literal(&outcome, slot)), [0.0.into(), 0.into(), false.into()]);
    let broken = inputs().with("expression", "a +").with("values.a", 2);
    assert!(failure(bench.run("ComfyMathExpression", broken)).contains("a +"));
    let schema = bench.catalogue.get("ComfyMathExpression").unwrap().schema();
    assert_eq!(schema.inputs[0].name, "expression");
}

#[test]
fn a_camera_is_told_in_words() {
    let bench = Workbench::new();
    let given = inputs().with("horizontal_angle", 333).with("vertical_angle", 17).with("zoom", 5.0);
    let made = bench.run("CameraAngle", given).unwrap();
    assert_eq!(literal(&made, 1), "front-left quarter view elevated shot medium shot".into());
    assert_eq!(literal(&made, 0).get("zoom").unwrap().as_float(), Some(1.4375));
}
