//! The test pack on the real executor: small graphs, as ComfyUI's own tests send them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use graph::{
    CacheMode, Call, Catalogue, Executor, Failure, Input, Literal, Map, NodeClass, NodeId, Outcome, Prompt,
    PromptNode, RunEnd, RunEvent, RunReport, RunRequest, Schema, Value, map, validate,
};

use nodes::value::{Image, Mask};
use runtime::host::Host;

/// Keeps the pictures that reach it: the tests' output node.
struct Keep {
    kept: Arc<Mutex<Vec<Value>>>,
}

impl NodeClass for Keep {
    fn schema(&self) -> Schema {
        Schema::new("Keep", "").input(Input::socket("images", "*")).output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        self.kept.lock().unwrap().push(call.value("images")?.clone());
        Ok(Outcome::default())
    }
}

/// A prompt in the making.
#[derive(Default)]
struct Builder {
    prompt: Prompt,
}

impl Builder {
    /// Adds a node; its first output.
    fn node<const N: usize>(&mut self, class: &str, inputs: [(&str, Literal); N]) -> Literal {
        self.named(&(self.prompt.nodes.len() + 1).to_string(), class, inputs)
    }

    fn named<const N: usize>(&mut self, id: &str, class: &str, inputs: [(&str, Literal); N]) -> Literal {
        self.prompt.nodes.insert(NodeId::from(id), PromptNode::new(class, map(inputs)));
        out(id, 0)
    }

    fn image(&mut self, content: &str) -> Literal {
        let size = [("height", 4.into()), ("width", 5.into()), ("batch_size", 1.into())];
        let [height, width, batch] = size;
        self.node("StubImage", [("content", content.into()), height, width, batch])
    }

    fn mask(&mut self, value: impl Into<Literal>) -> Literal {
        let inputs =
            [("value", value.into()), ("height", 4.into()), ("width", 5.into()), ("batch_size", 1.into())];
        self.node("StubMask", inputs)
    }

    fn mix(&mut self, image1: Literal, image2: Literal, mask: Literal) -> Literal {
        self.node("TestLazyMixImages", [("image1", image1), ("image2", image2), ("mask", mask)])
    }
}

fn out(id: &str, slot: usize) -> Literal {
    Literal::List(vec![id.into(), slot.into()])
}

/// What a run gave.
struct Ran {
    report: RunReport,
    kept: Vec<Value>,
    started: Vec<String>,
    plain_progress: usize,
    progress: usize,
}

impl Ran {
    fn started(&self, link: &Literal) -> bool {
        let id = link.as_list().unwrap()[0].as_text().unwrap();
        self.started.iter().any(|started| started == id)
    }

    /// The value that all pixels of each kept picture have, as a saved file has it.
    fn levels(&self) -> Vec<u8> {
        let level = |value: &Value| {
            let image = value.downcast::<Image>().expect("a picture");
            let first = image.values[0];
            assert!(image.values.iter().all(|value| *value == first), "the picture has one colour");
            (first * 255.0).clamp(0.0, 255.0) as u8
        };
        self.kept.iter().map(level).collect()
    }

    fn succeeded(self) -> Ran {
        assert!(matches!(self.report.end, RunEnd::Succeeded), "{:?}", self.report.end);
        self
    }

    fn failure(&self) -> &graph::NodeFailure {
        match &self.report.end {
            RunEnd::Failed(failure) => failure,
            other => panic!("it should have failed: {other:?}"),
        }
    }
}

/// An executor with the test pack and the output node.
struct Bench {
    catalogue: Arc<Catalogue>,
    executor: Executor,
    kept: Arc<Mutex<Vec<Value>>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(CacheMode::Classic)
    }

    fn with(mode: CacheMode) -> Bench {
        let kept = Arc::new(Mutex::new(Vec::new()));
        let mut catalogue = Catalogue::default();
        super::add(&mut catalogue, &Host::with_budget(1 << 30));
        catalogue.add(Keep { kept: Arc::clone(&kept) });
        let catalogue = Arc::new(catalogue);
        Bench { executor: Executor::new(Arc::clone(&catalogue), mode), catalogue, kept }
    }

    fn is_valid(&self, builder: &Builder) -> bool {
        validate(&self.catalogue, &mut builder.prompt.clone(), None).is_ok()
    }

    fn run(&mut self, builder: &Builder) -> Ran {
        let mut prompt = builder.prompt.clone();
        let accepted =
            validate(&self.catalogue, &mut prompt, None).unwrap_or_else(|error| panic!("{error:?}"));
        assert!(accepted.node_errors.is_empty(), "{:?}", accepted.node_errors);
        let events = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&events);
        let report = self.executor.run(RunRequest {
            prompt_id: "test".to_owned(),
            prompt: Arc::new(prompt),
            outputs: accepted.outputs,
            extra: Map::new(),
            secrets: Map::new(),
            cancel: Arc::default(),
            worker: None,
            observer: Arc::new(move |event: RunEvent| heard.lock().unwrap().push(event)),
        });
        let mut ran = Ran {
            report,
            kept: std::mem::take(&mut self.kept.lock().unwrap()),
            started: Vec::new(),
            plain_progress: 0,
            progress: 0,
        };
        for event in events.lock().unwrap().iter() {
            match event {
                RunEvent::Started { identity } => ran.started.push(identity.node.to_string()),
                RunEvent::Progress { is_plain: true, .. } => ran.plain_progress += 1,
                RunEvent::Progress { .. } => ran.progress += 1,
                _ => {}
            }
        }
        ran
    }
}

#[test]
fn every_class_has_a_schema_that_can_be_listed() {
    let catalogue = Bench::new().catalogue;
    assert_eq!(catalogue.len(), 38 + 1);
    for (name, class) in catalogue.iter() {
        let schema = class.schema();
        assert_eq!(schema.class, name);
        let mut names: Vec<_> = schema.inputs.iter().map(|input| &input.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), schema.inputs.len(), "{name} declares an input twice");
    }
}

#[test]
fn a_mix_asks_only_for_what_counts() {
    for (level, first, second, expected) in
        [(0.0, true, false, 0), (0.5, true, true, 127), (1.0, false, true, 255)]
    {
        let mut g = Builder::default();
        let (black, white, mask) = (g.image("BLACK"), g.image("WHITE"), g.mask(level));
        let mix = g.mix(black.clone(), white.clone(), mask);
        g.node("Keep", [("images", mix)]);
        let ran = Bench::new().run(&g).succeeded();
        assert_eq!((ran.started(&black), ran.started(&white)), (first, second), "mask {level}");
        assert_eq!(ran.levels(), [expected]);
    }
}

#[test]
fn a_list_of_masks_mixes_each_on_its_own() {
    let mut g = Builder::default();
    let list =
        g.node("TestMakeListNode", [("value1", 0.0.into()), ("value2", 0.5.into()), ("value3", 1.0.into())]);
    let (mask, black, white) = (g.mask(list), g.image("BLACK"), g.image("WHITE"));
    let mix = g.mix(black, white, mask);
    g.node("Keep", [("images", mix)]);
    assert_eq!(Bench::new().run(&g).succeeded().levels(), [0, 127, 255]);
}

#[test]
fn pictures_of_different_sizes_are_not_mixed() {
    let mut g = Builder::default();
    let small =
        [("content", "NOISE".into()), ("height", 2.into()), ("width", 5.into()), ("batch_size", 1.into())];
    let (black, small, mask) = (g.image("BLACK"), g.node("StubImage", small), g.mask(0.5));
    let mix = g.mix(black, small, mask);
    g.node("Keep", [("images", mix)]);
    let ran = Bench::new().run(&g);
    assert_eq!(ran.failure().identity.class, "TestLazyMixImages");
}

#[test]
fn undeclared_inputs_count_in_an_average() {
    let mut g = Builder::default();
    let (black, white) = (g.image("BLACK"), g.image("WHITE"));
    let inputs = [("input1", black.clone()), ("input2", white), ("input3", black.clone()), ("input4", black)];
    let average = g.node("TestVariadicAverage", inputs);
    g.node("Keep", [("images", average)]);
    assert_eq!(Bench::new().run(&g).succeeded().levels(), [63]);
}

#[test]
fn noise_is_in_range_and_differs() {
    let mut g = Builder::default();
    let noise = g.image("NOISE");
    g.node("Keep", [("images", noise)]);
    let mut bench = Bench::with(CacheMode::None);
    let pictures = [bench.run(&g).succeeded(), bench.run(&g).succeeded()].map(|mut ran| ran.kept.remove(0));
    let [first, second] = pictures.map(|value| value.downcast::<Image>().unwrap());
    assert!(first.values.iter().all(|value| (0.0..1.0).contains(value)));
    assert_ne!(first.values, second.values);
}

#[test]
fn what_does_not_fit_in_memory_is_refused() {
    let mut g = Builder::default();
    let huge = [
        ("content", "WHITE".into()),
        ("height", (1_i64 << 30).into()),
        ("width", (1_i64 << 36).into()),
        ("batch_size", (1_i64 << 30).into()),
    ];
    let huge = g.node("StubImage", huge);
    g.node("Keep", [("images", huge)]);
    assert!(Bench::new().run(&g).failure().is_out_of_memory);
}

#[test]
fn own_validation_judges_constants_and_links() {
    let bench = Bench::new();
    let judge = |class: &str, input1: Literal, input2: Literal| {
        let mut g = Builder::default();
        let product = g.node(class, [("input1", input1), ("input2", input2)]);
        g.node("Keep", [("images", product)]);
        bench.is_valid(&g)
    };
    for (value, is_good) in [(Literal::from(5), false), ("foo".into(), false), (5.0.into(), true)] {
        assert_eq!(judge("TestCustomValidation1", value.clone(), 3.0.into()), is_good, "{value:?}");
    }
    for (value, is_good) in [(0.5, true), (5.0, true), (7.0, false)] {
        assert_eq!(judge("TestCustomValidation5", 0.0.into(), value.into()), is_good, "{value}");
    }
    for class in
        ["TestCustomValidation1", "TestCustomValidation2", "TestCustomValidation3", "TestCustomValidation4"]
    {
        for (stub, value, is_good) in [("StubInt", Literal::from(5), false), ("StubFloat", 5.0.into(), true)]
        {
            let mut g = Builder::default();
            let stub_out = g.node(stub, [("value", value)]);
            let product = g.node(class, [("input1", stub_out), ("input2", 3.0.into())]);
            g.node("Keep", [("images", product)]);
            assert_eq!(bench.is_valid(&g), is_good, "{stub} into {class}");
        }
    }
    for (value, is_good) in [(5.0, true), (15.0, false)] {
        for (class, limit) in
            [("TestAsyncValidation", "threshold"), ("TestAsyncValidationError", "max_value")]
        {
            let mut g = Builder::default();
            let image = g.node(class, [("value", value.into()), (limit, 10.0.into())]);
            g.node("Keep", [("images", image)]);
            assert_eq!(bench.is_valid(&g), is_good, "{class} {value}");
        }
    }
}

#[test]
fn products_of_numbers_and_pictures() {
    let mut g = Builder::default();
    let white = g.image("WHITE");
    let half = g.node("TestCustomValidation1", [("input1", white.clone()), ("input2", 0.5.into())]);
    let same = g.node("TestCustomValidation2", [("input1", white.clone()), ("input2", white)]);
    let tenth = g.node("TestCustomValidation3", [("input1", 0.2.into()), ("input2", 0.5.into())]);
    for image in [half, same, tenth] {
        g.node("Keep", [("images", image)]);
    }
    let mut levels = Bench::new().run(&g).succeeded().levels();
    levels.sort_unstable();
    assert_eq!(levels, [25, 127, 255]);
}

#[test]
fn a_fingerprint_decides_what_is_cached() {
    let mut bench = Bench::new();
    for (should_change, runs_again) in [(false, false), (true, true)] {
        let mut g = Builder::default();
        let image = g.image("BLACK");
        let changed =
            g.node("TestCustomIsChanged", [("image", image), ("should_change", should_change.into())]);
        g.node("Keep", [("images", changed.clone())]);
        bench.run(&g).succeeded();
        assert_eq!(bench.run(&g).succeeded().started(&changed), runs_again);
    }
}

#[test]
fn a_fingerprint_sees_constants_only() {
    let mut bench = Bench::new();
    let mut g = Builder::default();
    let white = g.image("WHITE");
    let scaled = g.node("TestIsChangedWithConstants", [("image", white), ("value", 0.25.into())]);
    g.node("Keep", [("images", scaled.clone())]);
    assert_eq!(bench.run(&g).succeeded().levels(), [63]);
    assert!(!bench.run(&g).succeeded().started(&scaled), "the second run is cached");
}

#[test]
fn arithmetic_is_pythons() {
    let cases = [
        ("add", 7, -2, 5),
        ("subtract", 7, -2, 9),
        ("multiply", 7, -2, -14),
        ("divide", 7, -2, -4),
        ("divide", -8, 2, -4),
        ("modulo", 7, -2, -1),
        ("modulo", -7, 2, 1),
        ("modulo", -8, 2, 0),
        ("power", -3, 3, -27),
    ];
    for (operation, a, b, expected) in cases {
        let mut g = Builder::default();
        let inputs = [("a", Literal::from(a)), ("b", b.into()), ("operation", operation.into())];
        let number = g.node("TestIntMathOperation", inputs);
        g.node("Keep", [("images", number)]);
        let ran = Bench::new().run(&g).succeeded();
        assert_eq!(ran.kept[0].literal(), Some(&Literal::from(expected)), "{a} {operation} {b}");
    }
    let mut g = Builder::default();
    let number =
        g.node("TestIntMathOperation", [("a", 1.into()), ("b", 0.into()), ("operation", "divide".into())]);
    g.node("Keep", [("images", number)]);
    assert_eq!(Bench::new().run(&g).failure().kind, "ZeroDivisionError");
}

#[test]
fn truth_of_pictures_masks_and_constants() {
    let mut g = Builder::default();
    let (black, mask) = (g.image("BLACK"), g.mask(0.25));
    let list = [("value1", black), ("value2", mask), ("value3", "".into()), ("value4", 3.into())];
    let list = g.node("TestMakeListNode", list);
    let truth = g.node("TestToBoolNode", [("value", list)]);
    let inverse = g.node("TestToBoolNode", [("value", truth.clone()), ("invert", true.into())]);
    let both = g.node("TestMakeListNode", [("value1", truth), ("value2", inverse)]);
    g.node("Keep", [("images", both)]);
    let ran = Bench::new().run(&g).succeeded();
    let truths: Vec<_> =
        ran.kept.iter().map(|value| value.literal().and_then(Literal::as_bool).unwrap()).collect();
    assert_eq!(truths, [false, true, true, false, false, true, true, false]);
}

#[test]
fn a_blocked_item_of_a_list_is_left_out() {
    let mut g = Builder::default();
    let (black, white) = (g.image("BLACK"), g.image("WHITE"));
    let images =
        g.node("TestMakeListNode", [("value1", black.clone()), ("value2", white), ("value3", black)]);
    let numbers =
        g.node("TestMakeListNode", [("value1", 1.into()), ("value2", 2.into()), ("value3", 3.into())]);
    let is_two = g.node("TestIntConditions", [("a", numbers), ("b", 2.into()), ("operation", "==".into())]);
    let inputs = [("input", images), ("block", is_two), ("verbose", false.into())];
    let blocked = g.node("TestExecutionBlocker", inputs);
    let list = g.node("TestMakeListNode", [("value1", blocked)]);
    g.node("Keep", [("images", list)]);
    assert_eq!(Bench::new().run(&g).succeeded().levels(), [0, 0]);
}

#[test]
fn a_loop_runs_as_often_as_it_is_told() {
    for mode in [CacheMode::Classic, CacheMode::Lru(100), CacheMode::None] {
        let mut bench = Bench::with(mode);
        for (remaining, expected) in [(1, 127), (2, 63), (3, 31), (4, 15)] {
            let mut g = Builder::default();
            let (black, white) = (g.image("BLACK"), g.image("WHITE"));
            g.named("open", "TestForLoopOpen", [("remaining", remaining.into()), ("initial_value1", white)]);
            let average = g.node("TestVariadicAverage", [("input1", black), ("input2", out("open", 2))]);
            let inputs = [("flow_control", out("open", 0)), ("initial_value1", average)];
            let close = g.node("TestForLoopClose", inputs);
            g.node("Keep", [("images", close)]);
            let ran = bench.run(&g).succeeded();
            assert_eq!(ran.levels(), [expected], "{remaining} rounds, {mode:?}");
        }
    }
}

#[test]
fn a_while_loop_carries_its_values() {
    let mut g = Builder::default();
    let size =
        [("condition", Literal::from(true)), ("initial_value0", 5.into()), ("initial_value3", 1.into())];
    g.named("open", "TestWhileLoopOpen", size);
    let one_less = [("a", out("open", 1)), ("b", 1.into()), ("operation", "subtract".into())];
    let one_less = g.node("TestIntMathOperation", one_less);
    let doubled = g.node(
        "TestIntMathOperation",
        [("a", out("open", 4)), ("b", 2.into()), ("operation", "multiply".into())],
    );
    let goes_on = g.node("TestToBoolNode", [("value", one_less.clone())]);
    let inputs = [
        ("flow_control", out("open", 0)),
        ("condition", goes_on),
        ("initial_value0", one_less),
        ("initial_value3", doubled),
    ];
    g.named("close", "TestWhileLoopClose", inputs);
    g.node("Keep", [("images", out("close", 3))]);
    let ran = Bench::new().run(&g).succeeded();
    assert_eq!(ran.kept[0].literal(), Some(&Literal::from(32)));
}

#[test]
fn values_and_an_expansion_mix_in_one_list() {
    let mut g = Builder::default();
    let list =
        g.node("TestMakeListNode", [("value1", 0.1.into()), ("value2", 0.2.into()), ("value3", 0.3.into())]);
    g.named("mixed", "TestMixedExpansionReturns", [("input1", list)]);
    g.node("Keep", [("images", out("mixed", 0))]);
    assert_eq!(Bench::new().run(&g).succeeded().levels(), [25, 51, 76]);
}

#[test]
fn a_cycle_in_an_expansion_is_the_expanding_nodes_fault() {
    let mut g = Builder::default();
    let (black, white) = (g.image("BLACK"), g.image("WHITE"));
    g.named("cycle", "TestDynamicDependencyCycle", [("input1", black), ("input2", white)]);
    g.node("Keep", [("images", out("cycle", 0))]);
    assert_eq!(&*Bench::new().run(&g).failure().identity.real, "cycle");
}

#[test]
fn waiting_nodes_wait_side_by_side() {
    let mut g = Builder::default();
    let (black, white) = (g.image("BLACK"), g.image("WHITE"));
    let inputs = [
        ("image1", black.clone()),
        ("image2", white.clone()),
        ("image3", white.clone()),
        ("sleep1", 0.3.into()),
        ("sleep2", 0.3.into()),
        ("sleep3", 0.3.into()),
    ];
    let average = g.node("TestParallelSleep", inputs);
    g.node("Keep", [("images", average)]);
    let inputs =
        [("image1", black), ("image2", white), ("num_async_nodes", 5.into()), ("sleep_duration", 0.3.into())];
    let dynamic = g.node("TestDynamicAsyncGeneration", inputs);
    g.node("Keep", [("images", dynamic)]);
    let start = Instant::now();
    let ran = Bench::new().run(&g).succeeded();
    assert!(start.elapsed() < Duration::from_millis(1500), "{:?}", start.elapsed());
    let mut levels = ran.levels();
    levels.sort_unstable();
    assert_eq!(levels, [102, 170]);
    assert!(ran.progress > 8, "each waiting node tells how far it is");
}

#[test]
fn failing_nodes_fail() {
    let cases = [
        ("TestSyncError", vec![], "on purpose"),
        ("TestAsyncError", vec![("error_after", 0.02)], "on purpose"),
        ("TestAsyncTimeout", vec![("timeout", 0.1), ("operation_time", 2.0)], "timeout"),
    ];
    for (class, times, text) in cases {
        let mut g = Builder::default();
        let black = g.image("BLACK");
        let times = times.into_iter().map(|(name, value)| (name, Literal::from(value)));
        let inputs = map(times.chain([("value", black)]));
        g.prompt.nodes.insert(NodeId::from("bad"), PromptNode::new(class, inputs));
        g.node("Keep", [("images", out("bad", 0))]);
        let start = Instant::now();
        let ran = Bench::new().run(&g);
        assert!(start.elapsed() < Duration::from_secs(1), "{class}");
        assert_eq!(&*ran.failure().identity.real, "bad");
        assert!(ran.failure().message.contains(text), "{}", ran.failure().message);
    }
}

#[test]
fn a_resource_is_free_again_after_use() {
    let mut g = Builder::default();
    let black = g.image("BLACK");
    for name in ["first", "second"] {
        let inputs = [("value", black.clone()), ("resource_id", name.into()), ("duration", 0.05.into())];
        let user = g.node("TestAsyncResourceUser", inputs);
        g.node("Keep", [("images", user)]);
    }
    let mut bench = Bench::with(CacheMode::None);
    bench.run(&g).succeeded();
    bench.run(&g).succeeded();
}

#[test]
fn a_resource_is_held_by_one() {
    let mut g = Builder::default();
    for duration in [0.3, 0.31] {
        let inputs = [("value", 1.into()), ("resource_id", "same".into()), ("duration", duration.into())];
        let user = g.node("TestAsyncResourceUser", inputs);
        g.node("Keep", [("images", user)]);
    }
    let ran = Bench::new().run(&g);
    assert!(ran.failure().message.contains("in use"), "{}", ran.failure().message);
}

#[test]
fn shares_are_told_without_the_older_event() {
    for class in ["TestSyncProgressUpdate", "TestAsyncProgressUpdate"] {
        let mut g = Builder::default();
        let black = g.image("BLACK");
        let told = g.node(class, [("value", black), ("sleep_seconds", 0.06.into())]);
        g.node("Keep", [("images", told)]);
        let ran = Bench::new().run(&g).succeeded();
        assert!(ran.plain_progress >= 2, "{class}");
        assert_eq!(ran.progress, 0, "{class}");
        assert_eq!(ran.levels(), [0]);
    }
}

#[test]
fn a_lazy_check_asks_by_its_condition() {
    for (condition, first, second) in [(true, true, false), (false, false, true)] {
        let mut g = Builder::default();
        let (black, white) = (g.image("BLACK"), g.image("WHITE"));
        let inputs = [("input1", black.clone()), ("input2", white.clone()), ("condition", condition.into())];
        let image = g.node("TestAsyncLazyCheck", inputs);
        g.node("Keep", [("images", image)]);
        let ran = Bench::new().run(&g).succeeded();
        assert_eq!((ran.started(&black), ran.started(&white)), (first, second));
    }
}

#[test]
fn an_output_node_with_an_output_can_be_followed() {
    let mut g = Builder::default();
    let image = g.node(
        "StubConstantImage",
        [("value", 0.25.into()), ("height", 4.into()), ("width", 4.into()), ("batch_size", 2.into())],
    );
    let doubled = g.node("TestOutputNodeWithSocketOutput", [("image", image), ("value", 2.0.into())]);
    g.node("Keep", [("images", doubled)]);
    assert_eq!(Bench::new().run(&g).succeeded().levels(), [127]);
}

#[test]
fn masks_have_the_size_that_is_asked_for() {
    let mut g = Builder::default();
    let mask = g.mask(0.5);
    g.node("Keep", [("images", mask)]);
    let mask = Bench::new().run(&g).succeeded().kept[0].downcast::<Mask>().unwrap();
    assert_eq!((mask.batch, mask.height, mask.width, mask.values.len()), (1, 4, 5, 20));
}
