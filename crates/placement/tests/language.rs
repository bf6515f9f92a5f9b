//! Texts of the allocation language and what they mean, or where they go wrong.

use meta::DeviceId;
use placement::{
    Allocation, AllocationError, AllocationProblem as Problem, AllocationText, Amount, Amounts, Entry,
    MAX_TEXT_BYTES, Mode, Order, RemotePolicy,
};
use proptest::prelude::*;

const GB: u64 = 1 << 30;
const MB: u64 = 1 << 20;
const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);

fn exactly<T>(device: DeviceId, amount: T) -> Entry<T> {
    Entry { device, amount: Amount::Exactly(amount) }
}

fn at_least(device: DeviceId, amount: u64) -> Entry<u64> {
    Entry { device, amount: Amount::AtLeast(amount) }
}

fn rest<T>(device: DeviceId) -> Entry<T> {
    Entry { device, amount: Amount::Remainder }
}

fn normal(bytes: u64, donors: &[DeviceId]) -> Amounts {
    Amounts::Normal { virtual_vram_bytes: bytes, donors: donors.to_vec() }
}

fn meaning(text: &str) -> Allocation {
    AllocationText::parse(text).unwrap_or_else(|error| panic!("{error}")).allocation().clone()
}

fn fault(text: &str) -> AllocationError {
    AllocationText::parse(text).expect_err(text)
}

#[test]
fn amounts_in_three_modes() {
    let sim = DeviceId::sim(0);
    let cases = [
        ("cuda:0,2.5gb;cpu,*", Amounts::Bytes(vec![exactly(C0, 5 * GB / 2), rest(CPU)])),
        (
            "cuda:0,500mb;cuda:1,3.0g;cpu,5gb*",
            Amounts::Bytes(vec![exactly(C0, 500 * MB), exactly(C1, 3 * GB), at_least(CPU, 5 * GB)]),
        ),
        ("cuda:0,2gb*", Amounts::Bytes(vec![at_least(C0, 2 * GB)])),
        ("cuda:0,12gb;cuda:1,16gb", Amounts::Bytes(vec![exactly(C0, 12 * GB), exactly(C1, 16 * GB)])),
        ("cuda:0,25%;cpu,75%", Amounts::Percent(vec![exactly(C0, 25.0), exactly(CPU, 75.0)])),
        ("cuda:0,8%;cuda:1,8%;cpu,4%", {
            Amounts::Percent(vec![exactly(C0, 8.0), exactly(C1, 8.0), exactly(CPU, 4.0)])
        }),
        ("cuda:0,12.5%;cpu,*", Amounts::Percent(vec![exactly(C0, 12.5), rest(CPU)])),
        ("cuda:0,0.1;cpu,0.5", Amounts::Fraction(vec![exactly(C0, 0.1), exactly(CPU, 0.5)])),
        ("cuda:0,0.0000;cpu,0.1258", Amounts::Fraction(vec![exactly(C0, 0.0), exactly(CPU, 0.1258)])),
        ("cuda:0,0.5;cpu,*", Amounts::Fraction(vec![exactly(C0, 0.5), rest(CPU)])),
        ("cpu,*", Amounts::Bytes(vec![rest(CPU)])),
        ("cpu,1", Amounts::Fraction(vec![exactly(CPU, 1.0)])),
        ("cpu,.5", Amounts::Fraction(vec![exactly(CPU, 0.5)])),
        ("cpu,7b;sim:0,3k", Amounts::Bytes(vec![exactly(CPU, 7), exactly(sim, 3072)])),
        ("CPU , 7 Kb ; CUDA , 3 M", Amounts::Bytes(vec![exactly(CPU, 7168), exactly(C0, 3 * MB)])),
        ("cuda:0,0gb;cpu,*", Amounts::Bytes(vec![exactly(C0, 0), rest(CPU)])),
    ];
    for (text, amounts) in cases {
        assert_eq!(meaning(text), Allocation::new(amounts), "{text}");
    }
}

#[test]
fn automatic_normal_and_combined_forms() {
    let auto = Allocation::new(Amounts::Automatic);
    for text in ["", "  ", "auto", " AUTO ", "#", "auto#"] {
        assert_eq!(meaning(text), auto, "{text:?}");
    }
    let on_c0 = |amounts| Allocation { compute: Some(C0), ..Allocation::new(amounts) };
    assert_eq!(meaning("#cuda:0"), on_c0(Amounts::Automatic));
    assert_eq!(meaning("#cuda:0;4.0;cpu"), on_c0(normal(4 * GB, &[CPU])));
    assert_eq!(meaning("#cuda:0;4.5;cuda:1,cpu"), on_c0(normal(9 * GB / 2, &[C1, CPU])));
    assert_eq!(meaning("#cuda:0;4"), on_c0(normal(4 * GB, &[CPU])));
    assert_eq!(meaning("#cuda:0;4;"), on_c0(normal(4 * GB, &[CPU])));
    assert_eq!(meaning("#cuda:0;0;cpu"), on_c0(normal(0, &[CPU])));
    assert_eq!(meaning("#;4;cuda:1"), Allocation::new(normal(4 * GB, &[C1])));
    // Entries win over the number, which older tools stored along with them.
    let entries = Amounts::Fraction(vec![exactly(C0, 0.5), exactly(CPU, 0.25)]);
    assert_eq!(meaning("cuda:0,0.5;cpu,0.25#cuda:0;4.0;cpu"), on_c0(entries.clone()));
    assert_eq!(meaning("cuda:0,0.5;cpu,0.25#"), Allocation::new(entries));
}

#[test]
fn order_can_be_said_in_every_mode() {
    for (text, order) in [
        ("cuda:0,2gb;cpu,*;order=contiguous", Order::Contiguous),
        ("order=contiguous;cuda:0,20%;cpu,*", Order::Contiguous),
        ("ORDER = Interleaved", Order::Interleaved),
        ("order=contiguous#cuda:0;4;cpu", Order::Contiguous),
    ] {
        assert_eq!(meaning(text).order, Some(order), "{text}");
    }
}

/// Text, the part that is marked, and the problem.
type Fault = (&'static str, &'static str, Problem);

/// Devices and amounts that cannot stand together.
fn faults_of_meaning() -> Vec<Fault> {
    let not = |name: &str| Problem::NotADevice { name: name.to_owned(), available: Vec::new() };
    let mixed = |first, found| Problem::MixedModes { first, found };
    let twice = |device| Problem::RepeatedDevice { device };
    vec![
        ("mps,2gb", "mps", not("mps")),
        ("gpu:0,2gb", "gpu:0", not("gpu:0")),
        ("cuda:,2gb", "cuda:", not("cuda:")),
        ("cuda:0.5,2gb", "cuda:0.5", not("cuda:0.5")),
        ("cpu:1,2gb", "cpu:1", not("cpu:1")),
        ("cuda:99999,2gb", "cuda:99999", not("cuda:99999")),
        ("cuda:0,1gb;cuda:0,2gb", "cuda:0", twice(C0)),
        ("cuda,1gb;cuda:0,2gb", "cuda:0", twice(C0)),
        ("cuda:0,1gb;cpu,50%", "50%", mixed(Mode::Bytes, Mode::Percent)),
        ("cuda:0,10%;cpu,0.5", "0.5", mixed(Mode::Percent, Mode::Fraction)),
        ("cuda:0,0.5;cpu,2gb*", "2gb*", mixed(Mode::Fraction, Mode::Bytes)),
        ("cuda:0,*;cpu,*", "*", Problem::TwoRemainders),
        ("cuda:0,2gb*;cpu,*", "*", Problem::TwoRemainders),
        ("cuda:0,-2gb", "-2gb", Problem::Negative),
        ("cuda:0,-0.5", "-0.5", Problem::Negative),
        ("cuda:0,-5%", "-5%", Problem::Negative),
        ("#cuda:0;-4;cpu", "-4", Problem::Negative),
        ("cuda:0,150%;cpu,50%", "150%", Problem::PercentTooLarge),
        ("cuda:0,2", "2", Problem::FractionTooLarge),
        ("cuda:0,1.01;cpu,*", "1.01", Problem::FractionTooLarge),
        ("cuda:0,0%;cpu,0%", "0%", Problem::NothingShared),
        ("cuda:0,20%*", "*", Problem::RemainderOfShare),
        ("cuda:0,0.2*", "*", Problem::RemainderOfShare),
    ]
}

/// Texts that do not follow the grammar.
fn faults_of_form() -> Vec<Fault> {
    let missing = |device| Problem::MissingAmount { device };
    let nan = |found: &str| Problem::NotANumber { found: found.to_owned() };
    let unit = |found: &str| Problem::UnknownUnit { found: found.to_owned() };
    let trailing = |found: &str| Problem::Trailing { found: found.to_owned() };
    let option = |found: &str| Problem::UnknownOption { found: found.to_owned() };
    let twice = |device| Problem::RepeatedDevice { device };
    vec![
        (";", ";", Problem::EmptyEntry),
        ("cuda:0,2gb;", ";", Problem::EmptyEntry),
        ("cuda:0,2gb;;cpu,*", ";", Problem::EmptyEntry),
        (";cuda:0,2gb", ";", Problem::EmptyEntry),
        ("cuda:0", "cuda:0", missing(C0)),
        ("cuda:0,", "cuda:0", missing(C0)),
        ("cuda:0,;cpu,*", "cuda:0", missing(C0)),
        ("cpu#cuda:0", "cpu", missing(CPU)),
        ("cuda:0,2tb", "tb", unit("tb")),
        ("cuda:0,2mps", "mps", unit("mps")),
        ("cuda:0,1e3gb", "e3gb", unit("e3gb")),
        ("cuda:0,2 gigabytes", "gigabytes", unit("gigabytes")),
        ("cuda:0,nan", "nan", nan("nan")),
        ("cuda:0,Inf", "Inf", nan("Inf")),
        ("cuda:0,1.2.3gb", "1.2.3", nan("1.2.3")),
        ("cuda:0,.gb", ".", nan(".")),
        ("#cuda:0;NaN;cpu", "NaN", nan("NaN")),
        ("cuda:0,gb", "gb", Problem::MissingNumber),
        ("cuda:0,%", "%", Problem::MissingNumber),
        ("cuda:0,99999999999gb", "99999999999gb", Problem::TooLarge),
        ("#cuda:0;99999999999;cpu", "99999999999", Problem::TooLarge),
        ("cuda:0,2gb cpu,*", "cpu,*", trailing("cpu,*")),
        ("cuda:0,2gb**", "*", trailing("*")),
        ("cuda:0 2gb", "2gb", trailing("2gb")),
        ("cuda:0,2gb,3gb", ",3gb", trailing(",3gb")),
        ("#cuda:0;4;cpu;x", ";", trailing(";")),
        ("#cuda:0#", "#", trailing("#")),
        ("cuda:0,2gb!", "!", trailing("!")),
        ("!", "!", Problem::UnexpectedCharacter { found: '!' }),
        ("cuda:0,+2gb", "+", Problem::UnexpectedCharacter { found: '+' }),
        ("2gb", "2", Problem::MissingDevice),
        (",2gb", ",", Problem::MissingDevice),
        ("#cuda:0;;cpu", ";", Problem::MissingVirtualVram),
        ("#cuda:0;", ";", Problem::MissingVirtualVram),
        ("#cuda:0;4;cpu,cpu", "cpu", twice(CPU)),
        ("#cuda:0;4;2gb", "2", Problem::MissingDevice),
        ("order=random", "order=random", option("order=random")),
        ("order=", "order=", option("order=")),
        ("speed=contiguous", "speed=contiguous", option("speed=contiguous")),
        ("order=contiguous;order=contiguous", "order=contiguous", Problem::RepeatedOption),
        ("auto;cpu,*", "auto", Problem::AutoWithEntries),
        ("auto#cuda:0;4;cpu", "auto", Problem::AutoWithEntries),
    ]
}

#[test]
fn every_fault_marks_what_is_wrong() {
    for (text, marked, problem) in faults_of_meaning().into_iter().chain(faults_of_form()) {
        let error = fault(text);
        assert_eq!(error.problem, problem, "{text}");
        assert_eq!(&text[error.span.start..error.span.end], marked, "{text}");
        assert_eq!(error.text, text);
    }
    // Where a part comes twice, the mark is on the second.
    assert_eq!(fault("cuda:0,1gb;cuda:0,2gb").span.start, 11);
    assert_eq!(fault("order=contiguous;order=contiguous").span.start, 17);
}

#[test]
fn an_error_points_at_the_character_and_says_what_would_work() {
    let here = [C1, CPU, C0];
    let error = AllocationText::parse_for("cuda:0,2.5gb;cuda:7,3gb", &here).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cuda:0,2.5gb;cuda:7,3gb\n             ^^^^^^ there is no device cuda:7 here; available: cpu, cuda:0, cuda:1"
    );
    let error = AllocationText::parse_for("mps,2gb", &here).unwrap_err();
    assert_eq!(error.to_string(), "mps,2gb\n^^^ 'mps' is not a device; available: cpu, cuda:0, cuda:1");
    assert_eq!(
        fault("cuda:0,2gb\n;é").to_string(),
        "cuda:0,2gb ;é\n            ^ 'é' is not a device; write cpu, cuda:0 or sim:0"
    );
    assert_eq!(fault("cpu,").to_string(), "cpu,\n^^^ cpu has no amount; write cpu,2gb or cpu,*");
    assert_eq!(
        fault("#cuda:0;").to_string(),
        "#cuda:0;\n       ^ virtual_vram_gb, the gigabytes to move off the compute device, should be here; \
         such as #cuda:0;4;cpu"
    );
}

#[test]
fn long_texts_are_refused_and_shown_short() {
    let text = "é".repeat(MAX_TEXT_BYTES);
    let error = fault(&text);
    assert_eq!(error.problem, Problem::TooLong { bytes: 2 * MAX_TEXT_BYTES });
    assert!(error.to_string().chars().count() < 400);
    let entry = format!("cuda:0,{};cpu,*", " ".repeat(2000));
    let shown = fault(&entry).to_string();
    assert!(shown.chars().count() < 300 && shown.contains("…"), "{shown}");
    let padded = format!("{}cuda:0,2parsecs", " ".repeat(500));
    let shown = fault(&padded).to_string();
    let (line, marks) = shown.split_once('\n').unwrap();
    let column = line.chars().position(|c| c == 'p').unwrap();
    assert_eq!(marks.chars().position(|c| c == '^').unwrap(), column, "{shown}");
}

fn any_device() -> impl Strategy<Value = DeviceId> {
    prop_oneof![
        Just(CPU),
        (0u16..4).prop_map(DeviceId::cuda),
        (0u16..4).prop_map(DeviceId::sim),
        Just(DeviceId::null(0))
    ]
}

fn any_devices() -> impl Strategy<Value = Vec<DeviceId>> {
    prop::collection::btree_set(any_device(), 1..5)
        .prop_map(|set| set.into_iter().collect::<Vec<_>>())
        .prop_shuffle()
}

/// Entries with numbers, of which one may take the remainder.
fn entries<T: Clone + std::fmt::Debug>(
    number: impl Strategy<Value = T> + Clone,
    at_least: bool,
) -> impl Strategy<Value = Vec<Entry<T>>> {
    (any_devices(), prop::option::of(0usize..5)).prop_flat_map(move |(devices, star)| {
        let count = devices.len();
        (Just(devices), Just(star), prop::collection::vec((number.clone(), any::<bool>()), count)).prop_map(
            move |(devices, star, numbers)| {
                let amount = |(index, (number, keep)): (usize, (T, bool))| match star == Some(index) {
                    true if keep && at_least => Amount::AtLeast(number),
                    true => Amount::Remainder,
                    false => Amount::Exactly(number),
                };
                let amounts = numbers.into_iter().enumerate().map(amount);
                devices.into_iter().zip(amounts).map(|(device, amount)| Entry { device, amount }).collect()
            },
        )
    })
}

fn any_amounts() -> impl Strategy<Value = Amounts> {
    let bytes = prop_oneof![0..1u64 << 53, (0u64..100_000).prop_map(|mb| mb * MB), 0u64..5000];
    let is_bytes = |e: &Vec<Entry<u64>>| !e.is_empty();
    // `*` alone is byte mode, so shares need at least one number, and percentages one above 0.
    let has_share = |e: &Vec<Entry<f64>>| e.iter().any(|e| e.amount.number().is_some_and(|n| n > 0.0));
    prop_oneof![
        Just(Amounts::Automatic),
        (0..1u64 << 45, any_devices())
            .prop_map(|(bytes, donors)| Amounts::Normal { virtual_vram_bytes: bytes, donors }),
        entries(bytes, true).prop_filter("entries", is_bytes).prop_map(Amounts::Bytes),
        entries(0.0..100.0f64, false).prop_filter("a share", has_share).prop_map(Amounts::Percent),
        entries(0.0..1.0f64, false).prop_filter("a share", has_share).prop_map(Amounts::Fraction),
    ]
}

fn any_allocation() -> impl Strategy<Value = Allocation> {
    let order = prop::option::of(prop_oneof![Just(Order::Interleaved), Just(Order::Contiguous)]);
    let remote =
        prop_oneof![Just(RemotePolicy::Auto), Just(RemotePolicy::Stream), Just(RemotePolicy::InPlace)];
    (any_amounts(), order, prop::option::of(remote), prop::option::of(any_device()))
        .prop_map(|(amounts, order, remote, compute)| Allocation { amounts, order, remote, compute })
}

/// Pieces of the language in any order: nearer to real mistakes than any text is.
fn any_pieces() -> impl Strategy<Value = String> {
    let pieces = [
        "cuda:0",
        "cpu",
        "sim:1",
        "cuda:",
        "mps",
        ",",
        ";",
        ":",
        "*",
        "%",
        "#",
        "=",
        "-",
        "+",
        "2",
        "0.5",
        "1.",
        ".",
        "gb",
        "k",
        "nan",
        "order",
        "contiguous",
        "auto",
        " ",
        "\n",
        "é",
        "𝄞",
        "\u{0}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..16).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn what_is_printed_parses_to_the_same(allocation in any_allocation()) {
        let text = AllocationText::write(&allocation);
        prop_assert_eq!(text.map(|text| text.allocation().clone()), Ok(allocation));
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        check_any(&text)?;
    }

    #[test]
    fn any_pieces_are_read_or_refused(text in any_pieces()) {
        check_any(&text)?;
    }
}

fn check_any(text: &str) -> Result<(), TestCaseError> {
    match AllocationText::parse(text) {
        Ok(read) => {
            let again = AllocationText::write(read.allocation());
            prop_assert_eq!(again.map(|text| text.allocation().clone()), Ok(read.allocation().clone()));
        }
        Err(error) => {
            prop_assert!(text.get(error.span.start..error.span.end).is_some(), "{:?}", error.span);
            prop_assert_eq!(error.to_string().lines().count(), 2);
        }
    }
    Ok(())
}
