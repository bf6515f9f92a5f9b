//! What `serve`, `run`, `draw` and `check` share: folders and the runtime as the command line says, and the log.

mod log;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use device::Device;
use meta::{DeviceId, DeviceKind};
use residency::Products;
use runtime::Runtime;
use runtime::folders::{Folders, Layout};
use runtime::{PreviewMethod, Settings};

use crate::cli::{FolderArgs, JobArgs, PreviewName, WorkerDevices};
use crate::machine::Machine;
use crate::{demo_model, environment};

pub(crate) use log::{LogConfig, start_log, tell_warnings};

/// The folders that the command line says, with the model paths of the files it names and of one beside them.
pub(crate) fn folders(args: &FolderArgs) -> Result<Folders> {
    let base = match &args.base_directory {
        Some(base) => {
            anyhow::ensure!(
                base.is_dir(),
                "--base-directory {}: there is no such folder; give a ComfyUI install, or make the folder",
                base.display()
            );
            base.clone()
        }
        None => environment::current_dir().context("finding the current folder")?,
    };
    let mut layout = Layout::at(&base);
    let set = |place: &mut PathBuf, given: &Option<PathBuf>| {
        if let Some(given) = given {
            place.clone_from(given);
        }
    };
    set(&mut layout.output, &args.output_directory);
    set(&mut layout.input, &args.input_directory);
    set(&mut layout.user, &args.user_directory);
    if let Some(parent) = &args.temp_directory {
        layout.temp = parent.join("temp");
    }
    let mut folders = Folders::new(&layout);
    let beside = base.join("extra_model_paths.yaml");
    let found = beside.is_file().then_some(&beside);
    for file in found.into_iter().chain(&args.extra_model_paths_config) {
        folders.add_extra_paths(file, &environment::variable)?;
    }
    Ok(folders)
}

/// The runtime: where models compute, and the demo model among the loaders' files.
pub(crate) fn runtime(
    machine: &Machine,
    folders: Folders,
    compute: Option<DeviceId>,
    settings: Settings,
) -> Result<Arc<Runtime>> {
    Ok(Arc::new(open_runtime(machine, folders, compute, settings)?))
}

/// The same, for somebody who has more files to offer.
pub(crate) fn open_runtime(
    machine: &Machine,
    folders: Folders,
    compute: Option<DeviceId>,
    settings: Settings,
) -> Result<Runtime> {
    let compute = match compute {
        Some(id) => machine.registry().get(id)?.id(),
        None => first_accelerator(machine),
    };
    // What is to be exact whatever was asked for stays so.
    let products = if settings.products == Products::Exact { Products::Exact } else { machine.products() };
    let (coding, coded_cache) = (machine.coding(), machine.coded_cache());
    let settings = Settings { coding, products, coded_cache, ..settings };
    let mut runtime = Runtime::new(folders, machine.registry().clone(), compute, settings);
    for (key, name, bytes) in demo_model::FILES {
        runtime.offer_embedded(key, name, bytes);
    }
    Ok(runtime)
}

/// The devices of workers that run jobs at the same time; none where there is one, which has all devices, and where that
/// computes, if it is said.
pub(crate) fn workers(
    machine: &Machine,
    said: Option<&WorkerDevices>,
    compute: Option<DeviceId>,
) -> Result<(Vec<DeviceId>, Option<DeviceId>)> {
    let devices = match said {
        None => return Ok((Vec::new(), compute)),
        Some(WorkerDevices::Auto) => {
            let ids = machine.registry().iter().map(Device::id);
            ids.filter(|id| id.kind != DeviceKind::Cpu).collect()
        }
        Some(WorkerDevices::These(devices)) => devices.clone(),
    };
    for device in &devices {
        machine.registry().get(*device).with_context(|| format!("--workers {device}"))?;
    }
    let first = devices.first().copied();
    Ok((if devices.len() > 1 { devices } else { Vec::new() }, first))
}

/// The first device that is not the CPU, or the CPU.
pub(crate) fn first_accelerator(machine: &Machine) -> DeviceId {
    let ids = machine.registry().iter().map(Device::id);
    ids.into_iter().find(|id| id.kind != DeviceKind::Cpu).unwrap_or(DeviceId::CPU)
}

/// What is made of the flags for nodes.
pub(crate) fn settings(jobs: &JobArgs) -> Settings {
    Settings {
        no_metadata: jobs.disable_metadata,
        preview_size: Some(jobs.preview_size),
        preview: preview_method(jobs.preview_method),
        profile_file: environment::profile_file(),
        ..Settings::default()
    }
}

/// How previews are made, by ComfyUI's names.
fn preview_method(name: PreviewName) -> PreviewMethod {
    match name {
        PreviewName::None => PreviewMethod::None,
        PreviewName::Auto | PreviewName::Latent2rgb | PreviewName::Taesd => PreviewMethod::LatentToRgb,
    }
}

/// How long the process goes on after it was asked to end.
const GRACE: Duration = Duration::from_millis(1700);

/// Ends the process soon, whatever still runs: by then jobs have stopped, unless a node does not look whether it is to.
/// Queue and history are in the database, and a job that runs now runs again at the next start.
pub(crate) fn exit_soon() {
    std::thread::spawn(|| {
        std::thread::sleep(GRACE);
        tracing::warn!("something did not stop in time; the next start runs its job again");
        std::process::exit(0);
    });
}

/// Makes a folder empty: what previews left behind is nobody's.
pub(crate) fn empty(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("emptying {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_worker_is_as_none_and_auto_is_every_accelerator() {
        let machine = Machine::for_tests();
        let (both, one) = (vec![DeviceId::sim(0), DeviceId::sim(1)], Some(DeviceId::sim(0)));
        let workers = |said: &str| workers(&machine, Some(&said.parse().unwrap()), None);
        assert_eq!(workers("auto").unwrap(), (both, one));
        assert_eq!(workers("sim:1").unwrap(), (Vec::new(), Some(DeviceId::sim(1))));
        assert!(format!("{:#}", workers("sim:0,cuda:7").unwrap_err()).contains("--workers cuda:7"));
    }
}
