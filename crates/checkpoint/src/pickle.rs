//! PyTorch's checkpoints, which are pickles: a zip archive with the pickle and one entry per storage, or, before 2020, several
//! pickles and the storages behind them.
//!
//! A pickle is a program for a machine that can call anything in Python. The machine here calls nothing: it knows dictionaries,
//! lists, texts, numbers, and by name the few functions that tensors are made of, which it takes as descriptions. A pickle
//! that calls anything else is refused by the name of that. Tensors stay where they lie in the file.

mod archive;
mod globals;
mod legacy;
mod machine;
mod nodes;
mod tensors;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::checkpoint::Parsed;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::{Error, HeaderFault};
use archive::Archive;
pub(crate) use legacy::MAGIC as LEGACY_MAGIC;
use machine::Machine;
use tensors::{Place, Tensors};

/// The longest pickle that is read. A tensor takes some hundred bytes of it; its values are elsewhere.
pub const MAX_PICKLE_BYTES: u64 = 16 << 20;

/// What a pickle does that is not done here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PickleFault {
    /// It calls something that no tensor needs.
    Calls {
        /// What, with its module.
        name: String,
    },
    /// An instruction that no tensor needs.
    Instruction {
        /// Its code.
        code: u8,
        /// Where it stands.
        at: u64,
    },
    /// It ends before it is done, or uses what is not there.
    Broken {
        /// Where.
        at: u64,
    },
    /// A function is given something else than what it takes.
    Arguments {
        /// Of which function.
        of: &'static str,
    },
    /// It is no dictionary of tensors.
    NoTensors,
    /// Dictionaries within dictionaries, deeper or more often than any honest file has them.
    TooDeep,
}

impl fmt::Display for PickleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const INSTEAD: &str = "get the model as .safetensors";
        match self {
            PickleFault::Calls { name } => write!(
                f,
                "its pickle calls {name:?}, which no tensor needs; what a pickle calls could be any program, so nothing is \
                 called here: {INSTEAD}"
            ),
            PickleFault::Instruction { code, at } => {
                write!(
                    f,
                    "its pickle has the instruction {code:#04x} at byte {at}, which no tensor needs: {INSTEAD}"
                )
            }
            PickleFault::Broken { at } => {
                write!(f, "its pickle cannot be read from byte {at} on: the file is damaged; fetch it again")
            }
            PickleFault::Arguments { of } => {
                write!(f, "its pickle gives {of} what it does not take: the file is damaged; fetch it again")
            }
            PickleFault::NoTensors => {
                write!(
                    f,
                    "its pickle has no dictionary of tensors: it is no model, or one that was saved whole; {INSTEAD}"
                )
            }
            PickleFault::TooDeep => {
                f.write_str("its pickle has dictionaries within dictionaries without end")
            }
        }
    }
}

/// Reads the pickle of an archive.
pub(crate) fn parse_archive(source: &Arc<Source>) -> Result<Parsed, Error> {
    let archive = Archive::open(source)?;
    let (folder, pickle) = archive.pickle()?;
    archive.check_order(&folder)?;
    let bytes = slice(source, &pickle)?;
    let mut machine = Machine::new(bytes);
    let root = machine.run().map_err(|fault| refused(source, fault))?;
    let place = |key: &str| archive.find(&format!("{folder}data/{key}"));
    finish(source, &machine, root, &place)
}

/// Reads the pickles of a file from before archives.
pub(crate) fn parse_legacy(source: &Arc<Source>) -> Result<Parsed, Error> {
    let len = usize::try_from(MAX_PICKLE_BYTES).unwrap_or(usize::MAX).min(source.bytes().len());
    let refuse = |fault| refused(source, fault);
    let mut machine = Machine::new(&source.bytes()[..len]);
    machine.skip(LEGACY_MAGIC.len());
    let (root, storages) = legacy::read(&mut machine, source.bytes()).map_err(refuse)?;
    let place = |key: &str| Ok(storages.get(key).cloned());
    finish(source, &machine, root, &place)
}

fn finish(
    source: &Arc<Source>,
    machine: &Machine<'_>,
    root: nodes::Slot,
    place: &Place<'_>,
) -> Result<Parsed, Error> {
    let entries = Tensors { source, nodes: machine.nodes(), place }.entries(root)?;
    Ok(Parsed { entries, metadata: Metadata::new(Arc::clone(source), Vec::new())? })
}

/// The bytes of a pickle, unless it is too long.
fn slice<'a>(source: &'a Source, range: &Range<u64>) -> Result<&'a [u8], Error> {
    let (bytes, limit) = (range.end - range.start, MAX_PICKLE_BYTES);
    if bytes > limit {
        return Err(source.header_error(HeaderFault::TooLarge { bytes, limit }));
    }
    // Entries of an archive were checked to lie in the file.
    Ok(&source.bytes()[range.start as usize..range.end as usize])
}

fn refused(source: &Source, fault: PickleFault) -> Error {
    source.header_error(HeaderFault::Pickle { fault })
}
