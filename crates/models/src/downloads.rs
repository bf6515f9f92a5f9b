//! What people download to run a family: sets of files under a short name, for `gantry pull`.

use crate::diffusion::FAMILIES;

/// Files that belong together: with them, pictures can be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DownloadSet {
    /// Its short name, such as `sd15`.
    pub name: &'static str,
    /// What it is, for people.
    pub title: &'static str,
    /// The licence of its weights.
    pub licence: &'static str,
    /// Its files.
    pub files: &'static [Download],
}

/// A file on the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Download {
    /// Where it is: `hf:owner/repository/path`.
    pub address: &'static str,
    /// The kind of folder that it goes into, as loaders know it.
    pub folder: &'static str,
}

impl Download {
    /// A file that goes into a kind of folder.
    #[must_use]
    pub const fn new(folder: &'static str, address: &'static str) -> Download {
        Download { address, folder }
    }
}

/// Every set, in the order of the families.
pub fn all() -> impl Iterator<Item = &'static DownloadSet> {
    FAMILIES.iter().flat_map(|family| family.downloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_single_and_files_are_on_the_hub() {
        let names: Vec<&str> = all().map(|set| set.name).collect();
        let mut single = names.clone();
        single.sort_unstable();
        single.dedup();
        assert_eq!(single.len(), names.len(), "{names:?}");
        for file in all().flat_map(|set| set.files) {
            assert!(file.address.starts_with("hf:") && file.address.contains('.'), "{file:?}");
        }
    }
}
