//! What can go wrong in nodes, and how it reaches the user.

use device::OutOfMemory;
use graph::Failure;
use meta::ByteSize;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Text with what, where and what to do.
    #[error("{0}")]
    Told(String),
    /// A file that is recognised and that nothing here can run.
    #[error("{file} is {part}, which cannot be run yet; what can is {known}")]
    NotYet {
        /// The file.
        file: String,
        /// What it is, in words.
        part: String,
        /// What of that kind can run.
        known: String,
    },
    /// Values on the host that there is too little memory for.
    #[error(
        "values of {shape:?} take {} of host memory, but {} are available ({} in all, {} in use): choose a smaller size \
         or batch, or free the cached outputs of nodes",
        ByteSize(short.wanted), ByteSize(short.available), ByteSize(short.budget), ByteSize(short.used)
    )]
    HostMemory {
        /// The lengths of their axes.
        shape: Vec<usize>,
        /// The numbers.
        short: OutOfMemory,
    },
    /// Values that no machine has memory for.
    #[error("an array of {shape:?} values does not fit into memory; choose a smaller size")]
    TooLarge {
        /// The lengths of its axes.
        shape: Vec<usize>,
    },
    /// From a file.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// From a device or an operation on it.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// From a model family.
    #[error(transparent)]
    Models(#[from] models::Error),
    /// From loaded models.
    #[error(transparent)]
    Residency(#[from] residency::Error),
    /// From the sampler.
    #[error(transparent)]
    Sampling(#[from] sampling::Error),
    /// From a LoRA.
    #[error(transparent)]
    Patch(#[from] patch::Error),
    /// From the planner.
    #[error(transparent)]
    Plan(#[from] placement::PlanError),
    /// A picture that is too large to work on here.
    #[error("a picture of {width}x{height} pixels: {source}; a smaller one would fit")]
    PictureTooLarge {
        /// Its width.
        width: usize,
        /// Its height.
        height: usize,
        /// What the planner says.
        source: placement::PlanError,
    },
    /// From a picture file.
    #[error(transparent)]
    Picture(Box<dyn std::error::Error + Send + Sync>),
    /// From the file system.
    #[error("{path}: {source}{}", what_to_do(source))]
    Io {
        /// Which file or folder.
        path: std::path::PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// What a user can do about what the system said, where that is known.
fn what_to_do(source: &std::io::Error) -> &'static str {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match source.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => {
            "; there is no room for it on this machine: make some, or give a folder on another disk"
        }
        _ => "",
    }
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What an error comes down to, for those kinds that are handled.
enum Cause<'a> {
    Cancelled,
    OutOfMemory(&'a OutOfMemory),
    /// A file changed or lost parts while it was used.
    ChangedFile,
}

impl Error {
    /// The numbers, if a device had too little memory.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self.cause() {
            Some(Cause::OutOfMemory(short)) => Some(short),
            _ => None,
        }
    }

    /// Whether the job is to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self.cause(), Some(Cause::Cancelled))
    }

    /// Whether a model's file changed or lost parts while it was used: it has to be opened anew.
    #[must_use]
    pub fn is_changed_file(&self) -> bool {
        matches!(self.cause(), Some(Cause::ChangedFile))
    }

    fn cause(&self) -> Option<Cause<'_>> {
        match self {
            Error::Device(error) | Error::Patch(patch::Error::Device(error)) => of_device(error),
            Error::Checkpoint(error) => of_file(error),
            Error::Residency(error) => of_residency(error),
            Error::Models(models::Error::Residency(error)) => of_residency(error),
            Error::Models(models::Error::Device(error)) => of_device(error),
            Error::Sampling(sampling::Error::Cancelled { .. }) => Some(Cause::Cancelled),
            // Predictions that fail come back in the box that they were given in.
            Error::Sampling(sampling::Error::Model { source, .. }) => {
                source.downcast_ref::<Error>().and_then(Error::cause)
            }
            _ => None,
        }
    }
}

fn of_device(error: &device::Error) -> Option<Cause<'_>> {
    match error {
        device::Error::OutOfMemory(short) => Some(Cause::OutOfMemory(short)),
        device::Error::Cancelled => Some(Cause::Cancelled),
        _ => None,
    }
}

fn of_file(error: &checkpoint::Error) -> Option<Cause<'_>> {
    use checkpoint::Error::{Changed, LengthChanged};
    matches!(error, Changed { .. } | LengthChanged { .. }).then_some(Cause::ChangedFile)
}

fn of_residency(error: &residency::Error) -> Option<Cause<'_>> {
    match error {
        residency::Error::Cancelled => Some(Cause::Cancelled),
        residency::Error::Device(error) | residency::Error::Patch(patch::Error::Device(error)) => {
            of_device(error)
        }
        residency::Error::File { source, .. } => of_file(source),
        _ => None,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.cause() {
            Some(Cause::Cancelled) => return Failure::Interrupted,
            Some(Cause::OutOfMemory(short)) => return Failure::OutOfMemory(short.to_string()),
            Some(Cause::ChangedFile) => return Failure::error("OSError", error.to_string()),
            None => {}
        }
        let kind = match &error {
            Error::Plan(placement::PlanError::NoRoom { .. }) | Error::PictureTooLarge { .. } => {
                return Failure::OutOfMemory(error.to_string());
            }
            // What never fits is a wrong size; what does not fit now would after models have gone.
            Error::HostMemory { short, .. } if short.wanted <= short.budget => {
                return Failure::OutOfMemory(error.to_string());
            }
            Error::HostMemory { .. }
            | Error::TooLarge { .. }
            | Error::Plan(_)
            | Error::Told(_)
            | Error::NotYet { .. }
            | Error::Models(models::Error::Input { .. }) => "ValueError",
            Error::Io { .. } => "OSError",
            _ => "RuntimeError",
        };
        Failure::error(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use meta::DeviceId;

    use super::*;

    #[test]
    fn what_is_cancelled_is_interrupted_and_what_is_short_has_its_numbers() {
        let cancelled = Error::Models(residency::Error::Cancelled.into());
        assert_eq!(Failure::from(cancelled), Failure::Interrupted);
        let cancelled = Error::Models(models::Error::Device(device::Error::Cancelled));
        assert!(cancelled.is_cancelled());
        assert_eq!(Failure::from(cancelled), Failure::Interrupted);
        let short = OutOfMemory {
            device: DeviceId::CPU,
            wanted: 3 << 30,
            available: 1 << 30,
            budget: 2 << 30,
            used: 1 << 30,
            reserved: 0,
            op: None,
        };
        let inner = Error::Models(device::Error::OutOfMemory(short).into());
        let error = Error::Sampling(sampling::Error::Model { sigma: 1.0, source: inner.into() });
        assert_eq!(error.out_of_memory().map(|short| short.wanted), Some(3 << 30));
        let Failure::OutOfMemory(text) = Failure::from(error) else { panic!("it is out of memory") };
        assert!(text.contains('3') && text.contains("cpu"), "{text}");
    }

    #[test]
    fn other_errors_are_told_as_they_are() {
        let failure = Failure::from(Error::Told("no such thing".into()));
        assert_eq!(failure, Failure::value("no such thing"));
    }
}
