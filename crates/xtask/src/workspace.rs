//! The tree that the checks look at: every file git knows of or would take, and every crate with
//! the dependencies it names.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::scan::Scan;

/// Everything the checks read, gathered once.
pub(crate) struct Workspace {
    /// Text files, by path.
    pub(crate) files: Vec<SourceFile>,
    /// Paths of all files, text or not, and of the folders that hold them.
    pub(crate) paths: Vec<String>,
    /// The crates of the workspace.
    pub(crate) crates: Vec<Crate>,
}

/// One text file.
pub(crate) struct SourceFile {
    /// Its path relative to the workspace root, with forward slashes.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
    /// The scan of its text, for Rust files.
    pub(crate) rust: Option<Scan>,
}

/// One crate of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Crate {
    /// Its name, which is also the name of its folder.
    pub(crate) name: String,
    /// The path of its `Cargo.toml` relative to the workspace root.
    pub(crate) manifest: String,
    /// What it depends on.
    pub(crate) dependencies: Vec<Dependency>,
}

/// One dependency that a crate names.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    /// The name of the package.
    pub(crate) name: String,
    /// The name it has in the manifest, when that is another one.
    pub(crate) key: String,
    /// What it is for.
    pub(crate) kind: DependencyKind,
    /// Whether it is a crate of this workspace.
    pub(crate) ours: bool,
}

/// What a dependency is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DependencyKind {
    /// The crate itself uses it.
    Normal,
    /// The crate's build script uses it.
    Build,
    /// Only the crate's tests, examples and benchmarks use it.
    Dev,
}

impl Workspace {
    /// Reads the workspace that holds the current folder.
    pub(crate) fn load() -> Result<Workspace> {
        let metadata = read_metadata()?;
        let root = Path::new(&metadata.workspace_root);
        let mut paths = list_files(root)?;
        let mut files = Vec::new();
        for path in &paths {
            let bytes = fs::read(root.join(path)).with_context(|| format!("cannot read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(SourceFile::new(path, &text));
            }
        }
        add_folders(&mut paths);
        let crates = metadata.packages.into_iter().map(|package| package.into_crate(root)).collect();
        Ok(Workspace { files, paths, crates })
    }

    /// The text file at `path`.
    pub(crate) fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The Rust files, each with its scan.
    pub(crate) fn rust_files(&self) -> impl Iterator<Item = (&SourceFile, &Scan)> {
        self.files.iter().filter_map(|file| file.rust.as_ref().map(|scan| (file, scan)))
    }
}

impl SourceFile {
    /// A file with the given text; it need not exist on disk.
    pub(crate) fn new(path: &str, text: &str) -> SourceFile {
        let rust = path.ends_with(".rs").then(|| Scan::new(text));
        SourceFile { path: path.to_owned(), text: text.to_owned(), rust }
    }

    /// The crate whose folder holds the file.
    pub(crate) fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/").and_then(|rest| rest.split('/').next())
    }

    /// Whether the whole file is test code and not built into the product: an integration test, a
    /// benchmark, an example, a fuzz target, or the file of a `mod tests`.
    pub(crate) fn is_test_file(&self) -> bool {
        let mut folders: Vec<&str> = self.path.split('/').collect();
        let name = folders.pop().unwrap_or_default();
        name == "tests.rs"
            || name.ends_with("_tests.rs")
            || folders.iter().any(|folder| ["tests", "benches", "examples", "fuzz"].contains(folder))
    }
}

fn list_files(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot start git, which lists the files to check; install it")?;
    if !output.status.success() {
        bail!("`git ls-files` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let listing = String::from_utf8(output.stdout).context("a file name is not UTF-8; rename that file")?;
    // A file deleted but not yet committed is still listed.
    let mut paths: Vec<String> = listing
        .split('\0')
        .filter(|path| !path.is_empty() && root.join(path).is_file())
        .map(str::to_owned)
        .collect();
    paths.sort();
    paths.dedup();
    Ok(paths)
}

fn add_folders(paths: &mut Vec<String>) {
    let mut folders: Vec<String> =
        paths.iter().flat_map(|path| path.match_indices('/').map(|(at, _)| path[..at].to_owned())).collect();
    folders.sort();
    folders.dedup();
    paths.extend(folders);
}

fn read_metadata() -> Result<Metadata> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("cannot read the answer of `cargo metadata`")
}

/// The part of cargo's answer that is used here.
#[derive(Deserialize)]
struct Metadata {
    workspace_root: String,
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: String,
    dependencies: Vec<PackageDependency>,
}

#[derive(Deserialize)]
struct PackageDependency {
    name: String,
    rename: Option<String>,
    kind: Option<String>,
    path: Option<String>,
}

impl Package {
    fn into_crate(self, root: &Path) -> Crate {
        let manifest = Path::new(&self.manifest_path);
        let manifest = manifest.strip_prefix(root).unwrap_or(manifest).to_string_lossy().replace('\\', "/");
        let dependencies = self.dependencies.into_iter().map(PackageDependency::into_dependency).collect();
        Crate { name: self.name, manifest, dependencies }
    }
}

impl PackageDependency {
    fn into_dependency(self) -> Dependency {
        let kind = match self.kind.as_deref() {
            Some("dev") => DependencyKind::Dev,
            Some("build") => DependencyKind::Build,
            _ => DependencyKind::Normal,
        };
        let key = self.rename.unwrap_or_else(|| self.name.clone());
        Dependency { name: self.name, key, kind, ours: self.path.is_some() }
    }
}

#[cfg(test)]
pub(crate) mod fixtures {
    //! Workspaces made of snippets, for the tests of the checks.

    use super::{Crate, Dependency, DependencyKind, SourceFile, Workspace, add_folders};

    impl Workspace {
        /// A workspace with these files and no crates.
        pub(crate) fn of_files(files: &[(&str, &str)]) -> Workspace {
            let mut paths = files.iter().map(|(path, _)| (*path).to_owned()).collect();
            add_folders(&mut paths);
            let files = files.iter().map(|(path, text)| SourceFile::new(path, text)).collect();
            Workspace { files, paths, crates: Vec::new() }
        }

        /// The same workspace with a crate more.
        pub(crate) fn with_crate(mut self, name: &str, dependencies: &[Dependency]) -> Workspace {
            let manifest = format!("crates/{name}/Cargo.toml");
            let dependencies = dependencies.to_vec();
            self.crates.push(Crate { name: name.to_owned(), manifest, dependencies });
            self
        }
    }

    /// A dependency on a crate of the workspace.
    pub(crate) fn ours(name: &str, kind: DependencyKind) -> Dependency {
        Dependency { name: name.to_owned(), key: name.to_owned(), kind, ours: true }
    }

    /// A dependency on somebody else's crate.
    pub(crate) fn theirs(name: &str, kind: DependencyKind) -> Dependency {
        Dependency { name: name.to_owned(), key: name.to_owned(), kind, ours: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_files_are_known_by_their_place() {
        let is_test = |path: &str| SourceFile::new(path, "").is_test_file();
        assert!(is_test("crates/a/tests/formats.rs"));
        assert!(is_test("crates/a/benches/speed.rs"));
        assert!(is_test("crates/a/examples/mutate.rs"));
        assert!(is_test("crates/a/src/reader/tests.rs"));
        assert!(!is_test("crates/a/src/reader.rs"));
        assert!(!is_test("crates/testkit/src/lib.rs"));
    }

    #[test]
    fn a_file_belongs_to_the_crate_of_its_folder() {
        assert_eq!(SourceFile::new("crates/meta/src/lib.rs", "").crate_name(), Some("meta"));
        assert_eq!(SourceFile::new("docs/ARCHITECTURE.md", "").crate_name(), None);
    }

    #[test]
    fn cargo_says_what_kind_a_dependency_is() {
        let json = r#"{"workspace_root": "/w", "packages": [{"name": "tensor",
            "manifest_path": "/w/crates/tensor/Cargo.toml", "dependencies": [
                {"name": "device", "rename": null, "kind": null, "path": "/w/crates/device"},
                {"name": "proptest", "rename": "prop", "kind": "dev"}]}]}"#;
        let metadata: Metadata = serde_json::from_str(json).unwrap();
        let tensor = metadata.packages.into_iter().next().unwrap().into_crate(Path::new("/w"));
        assert_eq!(tensor.manifest, "crates/tensor/Cargo.toml");
        let [device, proptest] = tensor.dependencies.as_slice() else { panic!("two dependencies") };
        assert_eq!((device.kind, device.ours), (DependencyKind::Normal, true));
        assert_eq!((proptest.kind, proptest.ours), (DependencyKind::Dev, false));
        assert_eq!(proptest.key, "prop");
    }

    #[test]
    fn folders_of_files_are_paths_too() {
        let workspace = Workspace::of_files(&[("crates/a/src/lib.rs", "")]);
        assert_eq!(workspace.paths, ["crates/a/src/lib.rs", "crates", "crates/a", "crates/a/src"]);
    }
}
