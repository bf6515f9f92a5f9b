//! Plain pictures, masks and numbers.

use std::hash::{BuildHasher, Hasher, RandomState};

use graph::{Call, Catalogue, Failure, Input, NodeClass, Outcome, Schema};

use super::arithmetic::{constant, constant_mask, filled};
use super::schema;
use runtime::host::Host;

const CATEGORY: &str = "Testing/Stub Nodes";

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, host: &Host) {
    catalogue.add(StubImage(host.clone()));
    catalogue.add(StubConstantImage(host.clone()));
    catalogue.add(StubMask(host.clone()));
    catalogue.add(StubInt);
    catalogue.add(StubFloat);
}

fn sized(schema: Schema) -> Schema {
    let length = |name, default, max| Input::int(name, default, 1, max).with("step", 1);
    schema.input(length("height", 512, 1 << 30)).input(length("width", 512, 1 << 36)).input(length(
        "batch_size",
        1,
        1 << 30,
    ))
}

fn size(call: &Call) -> Result<(usize, usize, usize), Failure> {
    Ok((call.size("batch_size")?, call.size("height")?, call.size("width")?))
}

struct StubImage(Host);

impl NodeClass for StubImage {
    fn schema(&self) -> Schema {
        let content = Input::choice("content", ["WHITE", "BLACK", "NOISE"]);
        sized(schema("StubImage", CATEGORY).title("Stub Image").input(content)).output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (batch, height, width) = size(call)?;
        let image = match call.text("content")? {
            "WHITE" => constant(&self.0, [batch, height, width], 1.0)?,
            "BLACK" => constant(&self.0, [batch, height, width], 0.0)?,
            "NOISE" => {
                let mut noise = Noise::new();
                filled(&self.0, [batch, height, width], || noise.next())?
            }
            other => {
                return Err(Failure::value(format!(
                    "no picture is called {other:?}; take WHITE, BLACK or NOISE"
                )));
            }
        };
        Ok(Outcome::object(image))
    }
}

/// Uniform numbers in 0 to 1 that differ from run to run (SplitMix64).
struct Noise(u64);

impl Noise {
    fn new() -> Noise {
        // The standard library's hash keys are random, and nothing better is needed.
        Noise(RandomState::new().build_hasher().finish())
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        (mixed >> 40) as f32 / (1_u64 << 24) as f32
    }
}

fn level() -> Input {
    Input::float("value", 0.5, 0.0, 1.0, 0.01)
}

struct StubConstantImage(Host);

impl NodeClass for StubConstantImage {
    fn schema(&self) -> Schema {
        sized(schema("StubConstantImage", CATEGORY).title("Stub Constant Image").input(level()))
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (batch, height, width) = size(call)?;
        Ok(Outcome::object(constant(&self.0, [batch, height, width], call.float("value")? as f32)?))
    }
}

struct StubMask(Host);

impl NodeClass for StubMask {
    fn schema(&self) -> Schema {
        sized(schema("StubMask", CATEGORY).title("Stub Mask").input(level())).output("MASK")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (batch, height, width) = size(call)?;
        Ok(Outcome::object(constant_mask(&self.0, [batch, height, width], call.float("value")? as f32)?))
    }
}

struct StubInt;

impl NodeClass for StubInt {
    fn schema(&self) -> Schema {
        let value = Input::int("value", 0, -0xffff_ffff, 0xffff_ffff).with("step", 1);
        schema("StubInt", CATEGORY).title("Stub Int").input(value).output("INT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.value("value")?.clone()))
    }
}

struct StubFloat;

impl NodeClass for StubFloat {
    fn schema(&self) -> Schema {
        let value = Input::float("value", 0.0, -1.0e38, 1.0e38, 0.01);
        schema("StubFloat", CATEGORY).title("Stub Float").input(value).output("FLOAT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.value("value")?.clone()))
    }
}
