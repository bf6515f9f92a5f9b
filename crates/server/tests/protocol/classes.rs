//! Node classes that do little, and a server that has them.

use std::sync::Arc;
use std::time::Duration;

use device::{Device, NullBackend, Registry};
use engine::EngineConfig;
use graph::{Call, Catalogue, Failure, Input, Literal, NodeClass, Outcome, Picture, Schema, map};
use meta::DeviceId;
use runtime::Settings;
use runtime::{Folders, Runtime};
use server::{FilesConfig, Server, ServerConfig};

use crate::WORKERS;

/// Gives a number.
struct Number;

impl NodeClass for Number {
    fn schema(&self) -> Schema {
        Schema::new("Number", "test").input(Input::seed("value")).output("INT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(Literal::Int(call.seed("value")?.into())))
    }
}

/// Shows a number, in as many steps as it is told, with a picture each if it is told so.
struct Show;

impl NodeClass for Show {
    fn schema(&self) -> Schema {
        Schema::new("Show", "test")
            .input(Input::seed("value"))
            .input(Input::int("steps", 0, 0, 1_000_000).optional())
            .input(Input::int("step_ms", 0, 0, 10_000).optional())
            .input(Input::boolean("with_pictures", false).optional())
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let steps = call.int("steps").unwrap_or(0);
        let pause = Duration::from_millis(call.size("step_ms").unwrap_or(0) as u64);
        let with_pictures = call.boolean("with_pictures").unwrap_or(false);
        for step in 1..=steps {
            std::thread::sleep(pause);
            let picture = Picture { width: 8, height: 8, rgb: vec![200; 192], is_result: false };
            call.progress(step as f64, steps as f64, with_pictures.then_some(picture))?;
        }
        let item = map([("filename", Literal::from("a.png")), ("type", Literal::from("output"))]);
        let value = Literal::from(call.seed("value")?);
        let ui = map([("images", Literal::from(vec![item])), ("value", Literal::List(vec![value]))]);
        Ok(Outcome::default().with_ui(ui))
    }
}

/// Fails.
struct Fail;

impl NodeClass for Fail {
    fn schema(&self) -> Schema {
        Schema::new("Fail", "test").input(Input::seed("value")).output_node()
    }

    fn run(&self, _: &Call) -> Result<Outcome, Failure> {
        Err(Failure::value("it was to fail"))
    }
}

pub(crate) fn config() -> ServerConfig {
    let mut config = ServerConfig::new(Arc::new(FilesConfig::default()));
    config.port = 0;
    config.process.argv = vec!["gantry".to_owned(), "serve".to_owned()];
    config
}

pub(crate) async fn start() -> Server {
    start_with(config()).await
}

pub(crate) async fn start_with(config: ServerConfig) -> Server {
    start_in(config, Folders::default()).await
}

pub(crate) async fn start_in(config: ServerConfig, folders: Folders) -> Server {
    Server::start(config, engine(), catalogue(), studio_in(folders)).await.unwrap()
}

/// An engine with as many workers as the tests are to have.
pub(crate) fn engine() -> EngineConfig {
    EngineConfig { workers: workers(), ..EngineConfig::default() }
}

/// The devices of the workers; none if there is one, which has all devices.
fn workers() -> Vec<DeviceId> {
    if WORKERS == 1 { Vec::new() } else { (0..WORKERS).map(DeviceId::null).collect() }
}

pub(crate) fn catalogue() -> Arc<Catalogue> {
    let mut catalogue = Catalogue::default();
    catalogue.add(Number);
    catalogue.add(Show);
    catalogue.add(Fail);
    Arc::new(catalogue)
}

pub(crate) fn runtime() -> Arc<Runtime> {
    studio_in(Folders::default())
}

fn studio_in(folders: Folders) -> Arc<Runtime> {
    let device = |ordinal| Device::new(Arc::new(NullBackend::new(ordinal, 1 << 30)), 1 << 30);
    let devices = Registry::new((0..WORKERS).map(device));
    let settings = Settings { workers: workers(), ..Settings::default() };
    Arc::new(Runtime::new(folders, devices, DeviceId::null(0), settings))
}
