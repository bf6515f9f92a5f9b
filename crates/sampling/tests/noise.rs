//! Noise against PyTorch's and torchsde's values.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use sampling::noise::{BrownianTree, Independent, NoiseSource, prepare_noise};
use support::latent;
use testkit::Golden;

#[test]
fn initial_noise_is_equal_to_the_bit() {
    let golden = Golden::bundled("noise.safetensors").unwrap();
    let mut seen = 0;
    for name in golden.names().filter(|n| n.starts_with("seed")) {
        let seed = name.strip_prefix("seed").unwrap().split('.').next().unwrap().parse().unwrap();
        let want = latent(&golden, name);
        assert_eq!(prepare_noise(seed, want.shape(), None).unwrap(), want, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 23);
    let want = latent(&golden, "batch_index.seed42.idx3-1-3.3x4x8x8");
    assert_eq!(prepare_noise(42, want.shape(), Some(&[3, 1, 3])).unwrap(), want);
    assert!(prepare_noise(42, want.shape(), Some(&[3, 1])).is_err());
}

#[test]
fn a_samplers_own_noise_is_equal_to_the_bit() {
    let golden = Golden::bundled("noise.safetensors").unwrap();
    let mut source = Independent::new(42, &[1, 4, 4, 4]);
    for call in 0..3 {
        let want = latent(&golden, &format!("default_noise_sampler.seed42.call{call}"));
        assert_eq!(source.draw(1.0, 0.5), want, "call {call}");
    }
}

#[test]
fn brownian_noise_is_torchsdes_to_the_bit() {
    let golden = Golden::bundled("noise.safetensors").unwrap();
    let (_, sigmas) = golden.tensor("brownian.sigmas").unwrap();
    let lowest = sigmas.iter().copied().filter(|s| *s > 0.0).fold(f32::INFINITY, f32::min);
    let mut tree = BrownianTree::new(42, &[1, 4, 4, 4], lowest, sigmas[0]);
    for call in 0..5 {
        let want = latent(&golden, &format!("brownian.call{call}"));
        let got = tree.draw(sigmas[call], sigmas[call + 1]);
        assert_eq!(got, want, "call {call}");
    }
    let want = latent(&golden, "brownian.half0");
    let got = tree.draw(sigmas[0], (sigmas[0] + sigmas[1]) / 2.0);
    assert_eq!(got, want, "half of the first step");
}
