//! LoRA and its relatives: files of small tensors that change a model's weights.
//!
//! A file becomes a [`PatchFile`]: its tensors grouped by the layer they change and recognised as one of the known
//! forms ([`Delta`]). A [`KeyMap`], made from a model's own weight names, says which weight each group means. The two
//! together give a [`PatchSet`]: weight name to [`Patch`]es, in the order in which they apply, with everything that
//! found no weight listed.
//!
//! The arithmetic has two forms. [`Merge`] changes a weight where it lies on a device, as often as a copy of it arrives
//! there ([`apply`] does the same in f32, beside the weight). [`Beside`] leaves the weight as it is stored, which a
//! quantised one must be, and adds the patch's share to the layer's output. Both give the same result on every run: each
//! product is summed in one order.
//!
//! Merging models is the same: a [`Blend`] keeps some of a weight and adds some of another model's, which stays in its file
//! until a copy is changed.
//!
//! Nothing here writes to the source of a weight, so there is nothing to undo: [`PatchSet::changed_since`] names the
//! weights to stage again.
#![forbid(unsafe_code)]

mod adapter;
mod arithmetic;
mod beside;
mod delta;
mod error;
mod factor;
mod factors;
mod file;
mod group;
mod keys;
mod merge;
mod oft;
mod set;
mod signature;
mod suffix;

pub use adapter::{Adapter, Delta, Dora, DoraNorm, KroneckerFactor, OtherWeight, Product};
pub use arithmetic::apply;
pub use beside::{Beside, beside};
pub use error::{Error, Result};
pub use factor::Factor;
pub use factors::Allocate;
pub use file::{Change, PatchFile, signature_of};
pub use keys::{Blocks, KeyMap, Rows, Target};
pub use merge::{Merge, merge_stored};
pub use oft::Oft;
pub use set::{Blend, Patch, PatchSet, unclaimed};
pub use suffix::Naming;
