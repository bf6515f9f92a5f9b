//! What can be wrong with a folder of reference values.

use std::path::PathBuf;

use meta::ByteSize;

/// Why reference values could not be read, or model files not rebuilt.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder does not have what such a folder has.
    #[error(
        "{} is no folder of reference values: it has no folder {missing}; name one that has manifests, runs and inputs",
        path.display()
    )]
    NoGoldenFolder {
        /// The folder.
        path: PathBuf,
        /// What it should have.
        missing: &'static str,
    },
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file that is larger than any of its kind.
    #[error("{} has {}, and at most {} are read", path.display(), ByteSize(*bytes), ByteSize(*most))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A manifest of a file that is larger than any that is rebuilt.
    #[error(
        "the manifest {} describes a file of {}, and at most {} are rebuilt",
        path.display(), ByteSize(*bytes), ByteSize(*most)
    )]
    ModelTooLarge {
        /// The manifest.
        path: PathBuf,
        /// What the file would have.
        bytes: u64,
        /// The limit.
        most: u64,
    },
    /// A folder with more in it than any of its kind.
    #[error("{} has more than {most} entries", path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// The limit.
        most: usize,
    },
    /// Text that should have been JSON of a certain form.
    #[error("{} does not have the expected JSON form: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A file that is not as described.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<testkit::Error>,
    },
    /// Two manifests describe one file.
    #[error("{} and {} both describe {file}; one of them has to go", first.display(), second.display())]
    TwoManifests {
        /// One.
        first: PathBuf,
        /// The other.
        second: PathBuf,
        /// What both describe.
        file: String,
    },
    /// No case has such a name.
    #[error("there is no case '{wanted}', and none that begins so; there are {there}")]
    NoCase {
        /// What was asked for.
        wanted: String,
        /// The cases that there are.
        there: String,
    },
    /// A workflow that is no object of nodes.
    #[error("{}: a workflow in the API's format is an object of nodes by their ids", path.display())]
    NoWorkflow {
        /// The file.
        path: PathBuf,
    },
    /// A workflow names a model file that nothing describes.
    #[error(
        "case {case}: node {node} loads '{file}', and no manifest describes such a file; bring its manifest along"
    )]
    NoManifest {
        /// The case.
        case: String,
        /// The node.
        node: String,
        /// The file as the workflow names it.
        file: String,
    },
    /// A tensor of a node that the workflow does not have.
    #[error("case {case}: '{tensor}' is of a node that the workflow does not have")]
    NoNode {
        /// The case.
        case: String,
        /// The tensor.
        tensor: String,
    },
    /// A case without anything that could be compared.
    #[error(
        "case {case} has no tensor that a node gives: latent, image.NODE, encoded.NODE, cond.NODE or the like"
    )]
    NothingToCompare {
        /// The case.
        case: String,
    },
    /// A file that was rebuilt is not the one that the sums are of.
    #[error(
        "{file} was rebuilt with the SHA-256 {got}, and {expected} is listed; the manifest or the list is damaged"
    )]
    WrongSum {
        /// The file.
        file: String,
        /// What the list says.
        expected: String,
        /// What came out.
        got: String,
    },
    /// The values at hand cannot be compared with those of the reference.
    #[error("case {case}: {source}")]
    Compare {
        /// The case.
        case: String,
        /// Why.
        source: Box<testkit::Error>,
    },
    /// The values at hand have more axes than there are.
    #[error("case {case}: '{tensor}' came with the shape {shape:?}, which no tensor has")]
    Shape {
        /// The case.
        case: String,
        /// The tensor.
        tensor: String,
        /// The shape.
        shape: Vec<usize>,
    },
}
