//! Pictures whose tokens stand elsewhere than they were counted, in the families of pictures that know of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::detect;
use models::diffusion::flux::Flux;
use models::diffusion::flux2::Flux2;
use models::diffusion::z_image::ZImage;
use models::diffusion::{Alteration, Amount, Diffusion, Evaluation, Placed};
use sampling::LatentShape;
use support::*;
use testkit::random_normal;

/// The model of a file with a text and a latent of so many rows.
fn model(name: &str) -> Box<dyn Diffusion> {
    let file = checkpoint(name);
    let detected = detect(&file);
    match name {
        "flux_dev_micro" => Box::new(Flux::read(&file, &detected).unwrap()),
        "flux2_tiny" => Box::new(Flux2::read(&file, &detected.parts[0]).unwrap()),
        _ => Box::new(ZImage::read(&file, &detected.parts[0]).unwrap()),
    }
}

/// What a model gives for a latent of this shape, altered.
fn forward(name: &str, latent: [usize; 4], altered: &[Alteration]) -> Vec<f32> {
    let model = model(name);
    assert!(altered.iter().all(|alteration| model.knows(alteration)));
    let session = open_on_cpu(model.manifest(&checkpoint(name)).unwrap());
    let blank = model.blank(&models::conditioning::CondShape { tokens: 12, ..Default::default() });
    let text = Array { values: random_normal(3, blank.text.values.len()), shape: blank.text.shape.clone() };
    let cond = Cond { text: std::sync::Arc::new(text), ..blank };
    let scene = Scene::empty(LatentShape::sized(&latent).unwrap());
    let run = model.start(&session, &[Conditioned::whole(&cond)], &scene).unwrap();
    let x = session.lane().unwrap().tensor(latent, &random_normal(4, latent.iter().product())).unwrap();
    let evaluation = Evaluation { altered, ..Evaluation::new(0, &x, 0.6) };
    run.forward(&[evaluation]).unwrap()[0].to_vec().unwrap()
}

fn placed(scale: [f32; 3], shift: [f32; 3]) -> [Alteration; 1] {
    [Alteration::Placed(Placed { scale: scale.map(Amount), shift: shift.map(Amount) })]
}

#[test]
fn pictures_stand_where_they_are_told() {
    // Channels of a latent, and values of it along the side of a token.
    for (name, channels, side) in
        [("flux_dev_micro", 16, 2), ("flux2_tiny", 128, 1), ("z_image_micro", 16, 2)]
    {
        let latent = [1, channels, 4 * side, 3 * side];
        let plain = forward(name, latent, &[]);
        assert_eq!(forward(name, latent, &placed([1.0; 3], [0.0; 3])), plain, "{name}");
        // Along one axis each, by scale and by shift; there is one frame, whose number is never scaled.
        assert_eq!(forward(name, latent, &placed([7.0, 1.0, 1.0], [0.0; 3])), plain, "{name}");
        for axis in [1, 2] {
            let (mut scale, mut shift) = ([1.0; 3], [0.0; 3]);
            (scale[axis], shift[axis]) = (0.5, 3.0);
            let scaled = forward(name, latent, &placed(scale, [0.0; 3]));
            let shifted = forward(name, latent, &placed([1.0; 3], shift));
            assert!(scaled != plain && shifted != plain && scaled != shifted, "{name} {axis}");
        }
        // Lumina's family counts the index on from the text and leaves it there.
        let is_kept = forward(name, latent, &placed([1.0; 3], [5.0, 0.0, 0.0])) == plain;
        assert_eq!(is_kept, name == "z_image_micro", "{name}");
        // The only row stands where counting begins, however far rows are apart.
        let row = [1, channels, side, 3 * side];
        assert_eq!(forward(name, row, &placed([1.0, 9.0, 1.0], [0.0; 3])), forward(name, row, &[]), "{name}");
    }
}
