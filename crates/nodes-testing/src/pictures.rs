//! Mixing and averaging pictures: lazy inputs, undeclared inputs, fingerprints, and an output node with an output.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Literal, NodeClass, Outcome, Schema};

use super::arithmetic::{join, mean, scaled};
use super::schema;
use nodes::value::{Image, Mask};

const CATEGORY: &str = "Testing/Nodes";

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue) {
    catalogue.add(LazyMix);
    catalogue.add(VariadicAverage);
    catalogue.add(IsChanged);
    catalogue.add(IsChangedWithConstants);
    catalogue.add(OutputWithSocket);
}

/// Mixes two pictures by a mask and asks only for those that count.
struct LazyMix;

impl NodeClass for LazyMix {
    fn schema(&self) -> Schema {
        schema("TestLazyMixImages", CATEGORY)
            .title("Lazy Mix Images")
            .input(Input::socket("image1", "IMAGE").with("lazy", true))
            .input(Input::socket("image2", "IMAGE").with("lazy", true))
            .input(Input::socket("mask", "MASK"))
            .output("IMAGE")
    }

    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        let mask = call.object::<Mask>("mask")?;
        let counts = |name: &&str| match *name {
            "image1" => !is_all(&mask, 1.0),
            "image2" => !is_all(&mask, 0.0),
            _ => false,
        };
        Ok(call.lazy_inputs().filter(counts).map(str::to_owned).collect())
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let mask = call.object::<Mask>("mask")?;
        if is_all(&mask, 0.0) {
            return Ok(Outcome::one(call.value("image1")?.clone()));
        }
        if is_all(&mask, 1.0) {
            return Ok(Outcome::one(call.value("image2")?.clone()));
        }
        let (first, second) = (call.object::<Image>("image1")?, call.object::<Image>("image2")?);
        let first = join(&*first, &*mask, |value, mask| value * (1.0 - mask))?;
        let second = join(&*second, &*mask, |value, mask| value * mask)?;
        Ok(Outcome::object(join(&first, &second, |first, second| first + second)?))
    }
}

fn is_all(mask: &Mask, value: f32) -> bool {
    mask.values.iter().all(|other| *other == value)
}

/// Averages `input1`, `input2` and so on, of which only the first is declared.
struct VariadicAverage;

impl NodeClass for VariadicAverage {
    fn schema(&self) -> Schema {
        let input = Input::socket("input1", "IMAGE");
        schema("TestVariadicAverage", CATEGORY).title("Variadic Average").input(input).output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let mut images = vec![call.object::<Image>("input1")?];
        while let Some(image) = call.object_if_given::<Image>(&format!("input{}", images.len() + 1))? {
            images.push(image);
        }
        let images: Vec<&Image> = images.iter().map(Arc::as_ref).collect();
        Ok(Outcome::object(mean(&images)?))
    }
}

/// Passes a picture on, and says whether it counts as changed.
struct IsChanged;

impl NodeClass for IsChanged {
    fn schema(&self) -> Schema {
        // `BOOL` is no type that constants are converted to; the tests send true and false.
        schema("TestCustomIsChanged", CATEGORY)
            .title("Custom IsChanged")
            .input(Input::socket("image", "IMAGE"))
            .input(Input::socket("should_change", "BOOL").with("default", false).optional())
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.value("image")?.clone()))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        let should_change = call.inputs.first("should_change").and_then(|value| value.literal());
        Ok(Some(match should_change.is_some_and(Literal::is_truthy) {
            true => Literal::Float(f64::NAN),
            false => Literal::Bool(false),
        }))
    }
}

/// Multiplies a picture; its fingerprint tells whether it was given the picture or only the constant.
struct IsChangedWithConstants;

impl NodeClass for IsChangedWithConstants {
    fn schema(&self) -> Schema {
        schema("TestIsChangedWithConstants", CATEGORY)
            .title("IsChanged With Constants")
            .input(Input::socket("image", "IMAGE"))
            .input(factor())
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::object(scaled(&*call.object::<Image>("image")?, call.float("value")?)?))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        let value = call.float("value")?;
        let Some(image) = call.object_if_given::<Image>("image")? else { return Ok(Some(value.into())) };
        let sum: f64 = image.values.iter().map(|value| f64::from(*value)).sum();
        Ok(Some((sum / image.values.len() as f64 * value).into()))
    }
}

fn factor() -> Input {
    Input::new("value", graph::Kind::Float).with("default", 1.0).with("min", 0.0).with("max", 10.0)
}

/// Multiplies a picture, and is a reason to run although it has an output.
struct OutputWithSocket;

impl NodeClass for OutputWithSocket {
    fn schema(&self) -> Schema {
        schema("TestOutputNodeWithSocketOutput", "_for_testing")
            .title("Test Output Node With Socket Output")
            .input(Input::socket("image", "IMAGE"))
            .input(factor())
            .output("IMAGE")
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::object(scaled(&*call.object::<Image>("image")?, call.float("value")?)?))
    }
}
