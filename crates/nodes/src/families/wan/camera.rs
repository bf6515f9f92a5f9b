//! A camera's way through a scene, as rays: where they pass and where they point.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Value};
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::beside::{Beside, vision};
use super::{Asked, FRAMES, conditioned, made_new, overwrite, zeros_of};
use crate::Result;
use crate::class::class;
use crate::conditioning::three_outputs;
use crate::image::pixels;
use crate::value::LatentImage;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(WanCameraEmbedding(Arc::clone(runtime)));
    catalogue.add(WanCameraImageToVideo(Arc::clone(runtime)));
}

/// How far a camera moves, and how far it turns, over a whole video at speed one.
const WAY: f64 = 1.5;
const TURN: f64 = std::f64::consts::FRAC_PI_3;
/// Width and height that a camera's lens was measured with.
const LENS_SIZE: (f64, f64) = (1280.0, 720.0);
/// Values of a ray: where it passes, where it points.
const RAY: usize = 6;

/// Moves that there are: the turn about the axis of view, and the way along three axes.
const POSES: [(&str, f64, [f64; 3]); 9] = [
    ("Static", 0.0, [0.0, 0.0, 0.0]),
    ("Pan Up", 0.0, [0.0, -1.0, 0.0]),
    ("Pan Down", 0.0, [0.0, 1.0, 0.0]),
    ("Pan Left", 0.0, [-1.0, 0.0, 0.0]),
    ("Pan Right", 0.0, [1.0, 0.0, 0.0]),
    ("Zoom In", 0.0, [0.0, 0.0, 2.0]),
    ("Zoom Out", 0.0, [0.0, 0.0, -2.0]),
    ("Anti Clockwise (ACW)", -1.0, [0.0, 0.0, 0.0]),
    ("ClockWise (CW)", 1.0, [0.0, 0.0, 0.0]),
];

/// A camera that moves.
struct Camera {
    turn: f64,
    way: [f64; 3],
    speed: f64,
    /// Focal lengths and centre, as shares of width and height.
    lens: [f64; 4],
}

class! {
    /// A camera's way through the scene, as a latent whose values are rays.
    WanCameraEmbedding in "camera";
    |schema| {
        let share = |name: &str, step: f64| Input::float(name, 0.5, 0.0, 1.0, step).optional();
        schema
            .input(Input::choice("camera_pose", POSES.map(|pose| pose.0)))
            .input(pixels("width", 832, 16, 16))
            .input(pixels("height", 480, 16, 16))
            .input(pixels("length", 81, 1, 4))
            .input(Input::float("speed", 1.0, 0.0, 10.0, 0.1).optional())
            .input(share("fx", 0.000_000_001))
            .input(share("fy", 0.000_000_001))
            .input(share("cx", 0.01))
            .input(share("cy", 0.01))
            .named_output("WAN_CAMERA_EMBEDDING", "camera_embedding")
            .named_output("INT", "width")
            .named_output("INT", "height")
            .named_output("INT", "length")
            .module("comfy_extras.nodes_camera_trajectory")
    };
    |runtime, call| {
        let size = [call.size("length")?.max(1), call.size("height")?, call.size("width")?];
        let way = camera_of(call)?.embedding(runtime, size)?;
        let int = |size: usize| Value::from(size as i64);
        Ok(Outcome::values([Value::object(LatentImage::new(way)), int(size[2]), int(size[1]), int(size[0])]))
    }
}

fn camera_of(call: &Call) -> Result<Camera, Failure> {
    let pose = call.text("camera_pose")?;
    let Some((_, turn, way)) = POSES.iter().find(|known| known.0 == pose) else {
        return Err(Failure::value(format!("there is no camera pose \"{pose}\"; choose one of the list")));
    };
    // Workflows may leave these out.
    let number = |name: &str, usual: f64| match call.inputs.first(name) {
        Some(_) => call.float(name),
        None => Ok(usual),
    };
    let lens = [number("fx", 0.5)?, number("fy", 0.5)?, number("cx", 0.5)?, number("cy", 0.5)?];
    Ok(Camera { turn: *turn, way: *way, speed: number("speed", 1.0)?, lens })
}

impl Camera {
    /// The rays of every pixel of every frame, `[1, 24, frames of the latent, height, width]`: the first frame counts four
    /// times, and four frames become channels.
    fn embedding(&self, runtime: &Runtime, [length, height, width]: [usize; 3]) -> Result<Samples> {
        let frames = (length - 1) / FRAMES + 1;
        let shape = [1, RAY * FRAMES, frames, height, width];
        let room = runtime.host.room(&shape)?;
        let plane = height * width;
        let mut values = vec![0f32; shape.iter().product()];
        for frame in 0..frames * FRAMES {
            let pose = self.pose(frame.saturating_sub(FRAMES - 1), length);
            let (to, part) = (frame / FRAMES, frame % FRAMES);
            self.rays(&pose, [height, width], |at, ray| {
                for (value, channel) in ray.into_iter().zip(0..) {
                    values[((channel * FRAMES + part) * frames + to) * plane + at] = value;
                }
            });
        }
        Ok(room.latent(Latent::new(shape.to_vec(), values)?))
    }

    /// Where the camera is at a frame and how it is turned: rows of a rotation, each with its part of the way behind.
    fn pose(&self, frame: usize, length: usize) -> [[f32; 4]; 3] {
        let share = frame as f64 / length as f64 * self.speed;
        let (sin, cos) = (share * TURN * self.turn).sin_cos();
        let way = self.way.map(|along| (share * WAY * along) as f32);
        let (sin, cos) = (sin as f32, cos as f32);
        [[cos, -sin, 0.0, way[0]], [sin, cos, 0.0, way[1]], [0.0, 0.0, 1.0, way[2]]]
    }

    /// Gives the ray of every pixel.
    fn rays(
        &self,
        pose: &[[f32; 4]; 3],
        [height, width]: [usize; 2],
        mut give: impl FnMut(usize, [f32; RAY]),
    ) {
        let [fx, fy, cx, cy] = self.lens_at(height, width);
        for at in 0..height * width {
            let (x, y) = ((at % width) as f32 + 0.5, (at / width) as f32 + 0.5);
            let (x, y) = ((x - cx) / fx, (y - cy) / fy);
            let length = (x * x + y * y + 1.0).sqrt();
            let seen = [x / length, y / length, 1.0 / length];
            let d = pose.map(|row| row[0] * seen[0] + row[1] * seen[1] + row[2] * seen[2]);
            let o = pose.map(|row| row[3]);
            let across = [o[1] * d[2] - o[2] * d[1], o[2] * d[0] - o[0] * d[2], o[0] * d[1] - o[1] * d[0]];
            give(at, [across[0], across[1], across[2], d[0], d[1], d[2]]);
        }
    }

    /// Focal lengths and centre in pixels. What a picture cuts off of the lens's own proportions makes it longer.
    fn lens_at(&self, height: usize, width: usize) -> [f32; 4] {
        let [mut fx, mut fy, cx, cy] = self.lens;
        let (height, width) = (height as f64, width as f64);
        let ratio = LENS_SIZE.0 / LENS_SIZE.1;
        if ratio > width / height {
            fx *= height * ratio / width;
        } else {
            fy *= width / ratio / height;
        }
        [fx * width, fy * height, cx * width, cy * height].map(|value| value as f32)
    }
}

class! {
    /// A video that begins with a picture and follows a camera.
    WanCameraImageToVideo in "conditioning/video_models";
    |schema| {
        let schema = conditioned(schema)
            .input(Input::socket("clip_vision_output", "CLIP_VISION_OUTPUT").optional())
            .input(Input::socket("start_image", "IMAGE").optional())
            .input(Input::socket("camera_conditions", "WAN_CAMERA_EMBEDDING").optional());
        three_outputs(schema)
    };
    |runtime, call| {
        let asked = Asked::of(call)?;
        let camera = call.object_if_given::<LatentImage>("camera_conditions")?.map(|way| way.samples.clone());
        let vision = vision(call, "clip_vision_output")?;
        let mut beside = Beside { camera, vision, ..Beside::default() };
        if let Some(start) = asked.first_pictures(call, "start_image")? {
            let shape = asked.shape(&VIDEO_16);
            let mut picture = zeros_of(&VIDEO_16, &shape)?;
            overwrite(&mut picture, &*asked.encode(runtime, call, &start)?, 0);
            let room = runtime.host.room(&shape)?;
            beside.picture = Some(room.latent(picture));
            let given = start.batch + FRAMES - 1;
            beside.mask = Some(made_new(runtime, shape, |frame| frame < given)?);
        }
        beside.outcome(call, asked.empty(runtime, &VIDEO_16, 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rays_pass_and_point_where_the_camera_is() {
        let camera = Camera { turn: 0.0, way: [0.0, 0.0, 2.0], speed: 1.0, lens: [0.5; 4] };
        // A fifth of the way after the first of five frames.
        let pose = camera.pose(1, 5);
        assert!((pose[2][3] - 0.6).abs() < 1e-6 && pose[0][..3] == [1.0, 0.0, 0.0]);
        let mut rays = Vec::new();
        camera.rays(&pose, [16, 16], |_, ray| rays.push(ray));
        assert_eq!(rays.len(), 256);
        for ray in &rays {
            let (across, along) = (&ray[..3], &ray[3..]);
            assert!((along.iter().map(|value| value * value).sum::<f32>() - 1.0).abs() < 1e-5);
            // What a ray passes at is across to it.
            let dot: f32 = across.iter().zip(along).map(|(a, b)| a * b).sum();
            assert!(dot.abs() < 1e-6, "{ray:?}");
        }
        // A square cuts off of a wide lens.
        let [fx, fy, ..] = camera.lens_at(16, 16);
        assert!((fx / fy - 1280.0 / 720.0).abs() < 1e-6);
    }

    #[test]
    fn a_turn_keeps_the_centre() {
        let camera = Camera { turn: 1.0, way: [0.0; 3], speed: 1.0, lens: [0.5; 4] };
        let pose = camera.pose(5, 5);
        let (sin, cos) = (std::f64::consts::FRAC_PI_3).sin_cos();
        assert!((f64::from(pose[1][0]) - sin).abs() < 1e-6 && (f64::from(pose[0][0]) - cos).abs() < 1e-6);
    }
}
