//! What is coded comes back to the bit, in the bytes that the format says and in as few as promised.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

use codec::{Coded, Error, Format, HEADER_BYTES, Layout, Portable, TILE, encode};
use meta::DType;
use proptest::collection::vec;
use proptest::prelude::*;
use testkit::{random_bytes, random_trained};

fn decode(coded: &[u8]) -> Vec<u8> {
    let coded = Coded::parse(coded).unwrap();
    let mut values = vec![0; coded.layout().original_bytes()];
    coded.decode(&mut values).unwrap();
    values
}

fn trained(dtype: DType, [rows, columns]: [usize; 2], spread: f32) -> Vec<u8> {
    testkit::encode(dtype.into(), &random_trained(3, [rows, columns], spread)).unwrap()
}

/// Coded bytes over original ones.
fn ratio(dtype: DType, values: &[u8]) -> f64 {
    let coded = encode(dtype, values).unwrap();
    assert_eq!(decode(&coded), values);
    coded.len() as f64 / values.len() as f64
}

proptest! {
    #[test]
    fn any_values_come_back(format in prop::sample::select(&Format::ALL[..]), bytes in vec(any::<u8>(), 0..6000)) {
        let values = &bytes[..bytes.len() / format.element_bytes() * format.element_bytes()];
        let coded = encode(format.dtype(), values).unwrap();
        prop_assert_eq!(decode(&coded), values);
        let layout = Layout::new(format.dtype(), values.len() / format.element_bytes()).unwrap();
        prop_assert!(coded.len() <= layout.max_coded_bytes());
    }

    #[test]
    fn values_of_few_exponents_come_back(
        format in prop::sample::select(&Format::ALL[..]),
        base in 0u8..8,
        width in 1u8..10,
        noise in vec(any::<u8>(), 1..5000),
    ) {
        let values: Vec<u8> = noise.iter().flat_map(|byte| {
            let exponent = base + byte % width;
            format.filler(exponent)[..format.element_bytes()].to_vec()
        }).collect();
        prop_assert_eq!(decode(&encode(format.dtype(), &values).unwrap()), values);
    }

    #[test]
    fn any_tile_can_be_read_alone(elements in 1usize..9000, tile in 0usize..5) {
        let values = trained(DType::BF16, [1, elements], 1.0);
        let bytes = encode(DType::BF16, &values).unwrap();
        let coded = Coded::parse(&bytes).unwrap();
        let place = coded.layout().tile_place(tile);
        let mut out = vec![0; place.len()];
        let result = coded.decode_tile(&Portable, tile, &mut out);
        if tile < coded.layout().tiles() {
            result.unwrap();
            prop_assert_eq!(&out, &values[place]);
        } else {
            prop_assert_eq!(result, Err(Error::NoTile { tile, tiles: coded.layout().tiles() }));
        }
    }
}

/// A handful of values whose coded bytes can be written down by hand.
#[test]
fn the_bytes_are_those_of_the_format() {
    // 1.0, -1.5, 2.0, and 2^-20 which is outside of a window that holds the others.
    let values: Vec<u8> =
        [0x3f80u16, 0xbfc0, 0x4000, 0x3580].iter().flat_map(|bits| bits.to_le_bytes()).collect();
    let coded = encode(DType::BF16, &values).unwrap();
    let layout = Layout::new(DType::BF16, 4).unwrap();
    assert_eq!((layout.table(), layout.fixed(), layout.variable_start()), (64..72, 80..336, 336));
    assert_eq!(&coded[..8], b"GantryE3");
    assert_eq!(coded[8..16], [1, 0, 1, 0, 0, 0, 0, 0], "version and type");
    assert_eq!(coded[16..24], 4u64.to_le_bytes());
    assert_eq!(coded[24..32], (coded.len() as u64).to_le_bytes());
    let sum = codec::checksum(&codec::checksum(&values).to_le_bytes());
    assert_eq!(coded[32..40], sum.to_le_bytes());
    // The lowest window with 127 and 128 starts at 122; the exponent 107 is outside.
    assert_eq!(coded[64..72], [122, 0, 1, 0, 0, 0, 0, 0]);
    assert_eq!(coded[80..84], [0x00, 0xc0, 0x00, 0x00], "signs and mantissas");
    assert_eq!(coded[336..352], [0; 16], "no escapes before the one group that there is");
    let planes = &coded[352..448];
    // Codes: 127 is 6, 128 is 7, the escape is 0; what fills the group up has the code 1.
    assert_eq!((planes[0], planes[32], planes[64]), (0b1111_0100, 0b0111, 0b0111));
    assert_eq!((planes[1], planes[33], planes[65]), (0xff, 0, 0));
    assert_eq!(coded[448..], [107, 0, 0, 0, 0, 0, 0, 0], "the escape, aligned");
}

#[test]
fn trained_weights_shrink_as_far_as_promised() {
    // Measured on these values; the research page has 0.704 to 0.708 for bf16.
    for (spread, most) in [(0.0, 0.706), (0.5, 0.707), (1.0, 0.708)] {
        let ratio = ratio(DType::BF16, &trained(DType::BF16, [256, 2048], spread));
        assert!((0.69..most).contains(&ratio), "bf16, rows scaled by 2^±{spread}: {ratio}");
    }
    let f16 = ratio(DType::F16, &trained(DType::F16, [256, 2048], 0.5));
    assert!((0.87..0.91).contains(&f16), "f16: {f16}");
    let fp8 = ratio(DType::F8E4M3, &trained(DType::F8E4M3, [256, 2048], 0.5));
    assert!((0.87..0.91).contains(&fp8), "f8_e4m3: {fp8}");
}

#[test]
fn what_does_not_shrink_is_kept_raw_at_little_cost() {
    for format in Format::ALL {
        let values = random_bytes(5, 64 * TILE * format.element_bytes());
        let coded = encode(format.dtype(), &values).unwrap();
        assert_eq!(decode(&coded), values);
        let tables = HEADER_BYTES + 64 * 8;
        // Random exponents of few bits fall into a window of seven often enough to gain a little.
        assert!(coded.len() <= values.len() + tables, "{format:?}: {}", coded.len());
        if format == Format::Bf16 {
            assert_eq!(coded.len(), values.len() + tables);
        }
    }
}

#[test]
fn what_is_no_whole_values_or_no_float_is_refused() {
    assert!(matches!(encode(DType::BF16, &[0; 3]), Err(Error::Length { expected: 2, got: 3, .. })));
    assert_eq!(encode(DType::I8, &[0; 3]), Err(Error::Type { dtype: DType::I8 }));
    let coded = encode(DType::BF16, &[0; 8]).unwrap();
    let mut short = [0; 6];
    assert!(matches!(
        Coded::parse(&coded).unwrap().decode(&mut short),
        Err(Error::Length { expected: 8, got: 6, .. })
    ));
}
