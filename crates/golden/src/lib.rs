//! Reference cases: a folder of workflows, of what the reference implementation computed for them, and of manifests
//! from which anyone rebuilds the model files that they name, bit for bit.
//!
//! ```text
//! FOLDER/
//!   manifests/*.json        model files by names, shapes, types and the rule of their values
//!   manifests/SHA256SUMS    the sums of the files that come out
//!   inputs/                 pictures that workflows load
//!   runs/CASE/
//!     workflow_api.json     the workflow
//!     tensors.safetensors   what its nodes gave
//!   quant_files/            quantised models:
//!     models/*.json         which file each is made of, and how its layers are quantised
//!     runs/CASE/            as above
//! ```
//!
//! | to get | use |
//! |---|---|
//! | a folder, and the cases that somebody asks for | [`GoldenFolder`] |
//! | a case: its workflow, its model files, what is to be compared | [`Case`], [`WantedTensor`] |
//! | the model files on disk, each built once | [`ModelsFolder`] |
//! | how far a result may be from the reference | [`Tolerance`] |
//!
//! Nothing here runs a workflow: whoever does hands the values back to [`Case::compare`].
#![forbid(unsafe_code)]

mod case;
mod error;
mod folder;
mod limits;
mod models_folder;
mod quantised;
mod tolerance;

pub use case::{Case, Part, WantedTensor};
pub use error::Error;
pub use folder::GoldenFolder;
pub use models_folder::{Built, ModelsFolder};
pub use tolerance::{Exception, Tolerance};
