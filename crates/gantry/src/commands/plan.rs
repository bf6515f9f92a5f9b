//! `gantry plan`: where every block of a file would go on this machine, and what a step would take.

mod picture;

use std::process::ExitCode;

use anyhow::{Context, Result};
use placement::Plan;
use runtime::{PlanQuestion, Runtime, SaidPlacing, Settings};
use server::shapes::PlanShape;

use super::{print, print_json};
use crate::cli::{PlanArgs, PlanPart};
use crate::machine::Machine;
use crate::{environment, serving};

pub(super) fn run(machine: &Machine, args: &PlanArgs) -> Result<ExitCode> {
    let settings = Settings { profile_file: environment::profile_file(), ..Settings::default() };
    let folders = runtime::Folders::at(&environment::current_dir().context("finding the current folder")?);
    let runtime = serving::runtime(machine, folders, args.compute, settings)?;
    let plan = answer(&runtime, args)?;
    if let Some(path) = &args.picture {
        let name = args.file.file_name();
        let name = name.map_or_else(|| args.file.display().to_string(), |name| name.to_string_lossy().into());
        disk::write(path, picture::draw(&plan, &name).as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    if args.output.json {
        print_json(&PlanShape::of(&plan))?;
    } else {
        print(&format!("{plan}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(runtime: &Runtime, args: &PlanArgs) -> Result<Plan> {
    // The text is read first: a slip in it should not wait for the file.
    let allocation = runtime.allocation_of(SaidPlacing {
        alloc: args.alloc.as_deref(),
        virtual_vram_gb: args.virtual_vram_gb,
        donor: Some(&args.donor),
        compute: args.compute,
    })?;
    let file = runtime.open_file(&args.file)?;
    let question = PlanQuestion {
        part: args.part.map(PlanPart::role),
        compute: args.compute,
        allocation,
        size: (args.size.width, args.size.height),
        batch: args.batch,
        frames: args.frames,
        cfg: args.cfg,
        ..PlanQuestion::default()
    };
    Ok(runtime.plan_file(&file, &question)?)
}
