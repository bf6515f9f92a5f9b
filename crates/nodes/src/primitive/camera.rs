//! Where a camera stands around a subject: as words for a prompt, and as a place in space.

use std::sync::Arc;

use graph::{Catalogue, Input, Literal, Outcome, Value};

use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CameraAngle(Arc::clone(runtime)));
}

/// What is seen, from the front on to the right, in eighths of a circle.
const VIEWS: [&str; 8] = [
    "front view",
    "front-right quarter view",
    "right side view",
    "back-right quarter view",
    "back view",
    "back-left quarter view",
    "left side view",
    "front-left quarter view",
];
/// How far the camera stands from the subject.
const DISTANCE: f64 = 6.0;
/// How wide it sees, in degrees.
const FIELD_OF_VIEW: f64 = 35.0;
/// The largest number of the zoom, and how much it enlarges.
const MOST_ZOOM: f64 = 10.0;
const LARGEST: f64 = 1.875;

/// The words for a place: the side, the height and the distance.
fn words(across: f64, up: f64, zoom: f64) -> String {
    let eighth = (across / 45.0 + 0.5).floor().rem_euclid(8.0) as usize;
    let height = match up {
        low if low < -15.0 => "low-angle shot",
        level if level < 15.0 => "eye-level shot",
        raised if raised < 45.0 => "elevated shot",
        _ => "high-angle shot",
    };
    let distance = match zoom {
        far if far < 2.0 => "wide shot",
        medium if medium < 6.0 => "medium shot",
        _ => "close-up",
    };
    format!("{} {height} {distance}", VIEWS[eighth % VIEWS.len()])
}

/// The camera in space; the subject is in the middle.
fn camera(across: f64, up: f64, zoom: f64) -> Literal {
    let (yaw, pitch) = (across.to_radians(), up.to_radians());
    let point =
        |[x, y, z]: [f64; 3]| Literal::Map(graph::map([("x", x.into()), ("y", y.into()), ("z", z.into())]));
    let place = [pitch.cos() * yaw.sin(), pitch.sin(), pitch.cos() * yaw.cos()].map(|part| DISTANCE * part);
    Literal::Map(graph::map([
        ("position", point(place)),
        ("target", point([0.0; 3])),
        ("zoom", (1.0 + (LARGEST - 1.0) * zoom / MOST_ZOOM).into()),
        ("cameraType", "perspective".into()),
        ("fov", FIELD_OF_VIEW.into()),
    ]))
}

class! {
    CameraAngle in "3d";
    |schema| schema
        .title("Compose Camera Angle Prompt")
        .about("A camera's place around a subject, in space and as words for a prompt.")
        .input(Input::int("horizontal_angle", 0, 0, 360).tooltip("Degrees around the subject; 90 is its right side."))
        .input(Input::int("vertical_angle", 0, -30, 60).tooltip("Degrees above it; from below if it is negative."))
        .input(Input::float("zoom", 5.0, 0.0, MOST_ZOOM, 0.1).tooltip("From far, 0, to near, 10."))
        .input(Input::socket("image", "IMAGE").optional().tooltip("What the front end shows on the subject."))
        .named_output("LOAD3D_CAMERA", "camera_info")
        .named_output("STRING", "prompt")
        .module("comfy_extras.nodes_load_3d");
    |runtime, call| {
        let across = (call.int("horizontal_angle")? as f64).clamp(0.0, 360.0);
        let up = (call.int("vertical_angle")? as f64).clamp(-30.0, 60.0);
        let zoom = call.float("zoom")?.clamp(0.0, MOST_ZOOM);
        let values = [Value::from(camera(across, up, zoom)), Value::from(words(across, up, zoom))];
        Ok(Outcome::values(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_camera_around() {
        assert_eq!(words(0.0, 0.0, 5.0), "front view eye-level shot medium shot");
        assert_eq!(words(333.0, 17.0, 5.0), "front-left quarter view elevated shot medium shot");
        assert_eq!(words(360.0, -15.0, 1.9), "front view eye-level shot wide shot");
        assert_eq!(words(22.5, -16.0, 6.0), "front-right quarter view low-angle shot close-up");
        assert_eq!(words(180.0, 45.0, 10.0), "back view high-angle shot close-up");
    }

    #[test]
    fn the_camera_looks_at_the_middle_from_its_distance() {
        let camera = camera(90.0, 30.0, 10.0);
        let place = camera.get("position").unwrap();
        let axis = |name: &str| place.get(name).unwrap().as_float().unwrap();
        let (x, y, z) = (axis("x"), axis("y"), axis("z"));
        assert!(
            (x - 6.0 * 30f64.to_radians().cos()).abs() < 1e-9 && (y - 3.0).abs() < 1e-9 && z.abs() < 1e-9
        );
        assert_eq!(camera.get("zoom").unwrap().as_float(), Some(1.875));
    }
}
