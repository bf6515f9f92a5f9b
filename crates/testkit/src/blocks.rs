//! Random blocks of any quantisation format, for testing kernels: every code and every sub-scale occurs, while
//! the block scales stay in a range that keeps the values finite and near one.

use half::f16;
use meta::QuantFormat;

use crate::Random;
use crate::random_bytes;

/// `count` blocks of random bytes whose f16 scales (and minima) lie between 0.01 and 0.05.
pub fn random_blocks(format: QuantFormat, seed: u64, count: usize) -> Vec<u8> {
    let mut bytes = random_bytes(seed, count * format.block_bytes());
    let mut random = Random::new(!seed);
    for block in bytes.chunks_mut(format.block_bytes()) {
        for &at in scale_positions(format) {
            let scale = f16::from_f32(random.uniform(0.01, 0.05));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

/// Where in a block the f16 numbers stand.
fn scale_positions(format: QuantFormat) -> &'static [usize] {
    match format {
        QuantFormat::Q4_1 | QuantFormat::Q5_1 | QuantFormat::Q4_K | QuantFormat::Q5_K => &[0, 2],
        QuantFormat::Q2_K => &[80, 82],
        QuantFormat::Q3_K => &[108],
        QuantFormat::Q6_K => &[208],
        QuantFormat::Q4_0
        | QuantFormat::Q5_0
        | QuantFormat::Q8_0
        | QuantFormat::IQ1_S
        | QuantFormat::IQ2_XXS
        | QuantFormat::IQ2_XS
        | QuantFormat::IQ2_S
        | QuantFormat::IQ3_XXS
        | QuantFormat::IQ3_S
        | QuantFormat::IQ4_NL
        | QuantFormat::IQ4_XS => &[0],
    }
}
