//! What can be wrong with a workflow file: what ends its conversion, and what only deserves a word.

/// Why a workflow file cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is neither a prompt nor an editor's file.
    #[error(
        "this is no workflow: it has neither a list of `nodes` (as editors save) nor nodes with a `class_type` \
         (as the API takes); save it again from the editor, or export it in the API format"
    )]
    NotAWorkflow,
    /// A part of it has the wrong form.
    #[error("{place}: {what}; the file is damaged or was not written by an editor")]
    Malformed {
        /// Which node, link or subgraph.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// A subgraph contains itself.
    #[error("node {node}: its subgraph \"{subgraph}\" contains itself, so it has no end; remove that node")]
    SubgraphCycle {
        /// The node that closes the circle.
        node: String,
        /// The subgraph's name or id.
        subgraph: String,
    },
    /// Links lead in a circle without a node that runs.
    #[error(
        "node {node}, input \"{input}\": its link leads in a circle through bypassed or virtual nodes; remove one \
         of those links"
    )]
    LinkCycle {
        /// The node whose input it is.
        node: String,
        /// The input.
        input: String,
    },
    /// Subgraphs inside subgraphs make more than anyone draws.
    #[error("node {node}: with its subgraphs in place the workflow has more than {limit} {what}")]
    TooLarge {
        /// The node at which it was noticed.
        node: String,
        /// How many are allowed.
        limit: usize,
        /// What there are too many of.
        what: &'static str,
    },
}

/// Something in a workflow file that was left out, guessed or does not fit; the rest was converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// A class that is not in the catalogue: the prompt has the node, and will not run.
    #[error("node {node}: there is no class \"{class}\"")]
    MissingClass {
        /// The node.
        node: String,
        /// Its class.
        class: String,
    },
    /// The file has more values than the class has widgets.
    #[error(
        "node {node} ({class}): {extra} more values are stored than there are widgets; they were ignored"
    )]
    ExtraValues {
        /// The node.
        node: String,
        /// Its class.
        class: String,
        /// How many were ignored.
        extra: usize,
    },
    /// The file lacks values that the class has widgets for.
    #[error("node {node} ({class}): no value is stored for {}; the defaults are used", names.join(", "))]
    MissingValues {
        /// The node.
        node: String,
        /// Its class.
        class: String,
        /// The widgets.
        names: Vec<String>,
    },
    /// A link that leads nowhere was left out.
    #[error("node {node}, input \"{input}\": {why}; the link was left out")]
    DroppedLink {
        /// The node.
        node: String,
        /// Its input.
        input: String,
        /// What is at its other end.
        why: String,
    },
    /// A node that the file has twice: the first counts.
    #[error("node {node}: its id is used twice; the second one was left out")]
    DuplicateNode {
        /// The id.
        node: String,
    },
    /// A part of the file that Gantry does not act on.
    #[error("node {node}: {what}")]
    Unsupported {
        /// The node.
        node: String,
        /// What is not acted on.
        what: String,
    },
}
