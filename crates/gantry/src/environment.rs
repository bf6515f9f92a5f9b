//! What the environment says: where libraries may be and where files may be kept.

use std::env;
use std::path::{Path, PathBuf};

/// Folders in which CUDA libraries may be, in the order in which they are tried.
pub(crate) fn cuda_search_roots() -> Vec<PathBuf> {
    let named = ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let loader =
        env::var_os("LD_LIBRARY_PATH").map_or(Vec::new(), |paths| env::split_paths(&paths).collect());
    named.chain(loader).chain(python_packages()).collect()
}

/// Where kernels compiled on this machine are kept.
pub(crate) fn kernel_cache_dir() -> Option<PathBuf> {
    cache_dir().map(|dir| dir.join("kernels"))
}

/// Where what was measured of this machine is kept.
pub(crate) fn profile_file() -> Option<PathBuf> {
    cache_dir().map(|dir| dir.join("machine.json"))
}

/// Where files are kept that can be made again.
fn cache_dir() -> Option<PathBuf> {
    let cache = env::var_os("GANTRY_CACHE_DIR").map(PathBuf::from);
    let system = || env::var_os("XDG_CACHE_HOME").map(|dir| PathBuf::from(dir).join("gantry"));
    let home = || env::home_dir().map(|dir| dir.join(".cache").join("gantry"));
    cache.or_else(system).or_else(home)
}

/// The folder that the program was started in.
pub(crate) fn current_dir() -> std::io::Result<PathBuf> {
    env::current_dir()
}

/// The value of a variable, for paths that name one.
pub(crate) fn variable(name: &str) -> Option<String> {
    // Where the home folder is not said, the system knows it.
    let home =
        || (name == "HOME").then(env::home_dir).flatten().map(|dir| dir.to_string_lossy().into_owned());
    env::var(name).ok().or_else(home)
}

/// The file of this program.
pub(crate) fn own_program() -> std::io::Result<PathBuf> {
    env::current_exe()
}

/// The command line as it was written.
pub(crate) fn command_line() -> Vec<String> {
    env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// Package folders of the Python installs that the environment points at.
pub(crate) fn python_packages() -> Vec<PathBuf> {
    let prefixes = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let programs = env::var_os("PATH").map_or(Vec::new(), |paths| env::split_paths(&paths).collect());
    let beside = programs.into_iter().filter(|dir| dir.join("python3").exists()).filter_map(|dir| {
        // A virtual environment's python3 is a link: its own packages stand beside the link.
        dir.parent().map(Path::to_path_buf)
    });
    let user = env::home_dir().map(|home| home.join(".local"));
    let mut found = Vec::new();
    for prefix in prefixes.chain(beside).chain(user) {
        for packages in packages_below(&prefix) {
            if !found.contains(&packages) {
                found.push(packages);
            }
        }
    }
    found
}

/// `lib/python3.*/site-packages` and `dist-packages` below an install's prefix.
pub(crate) fn packages_below(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let versions = entries.flatten().map(|entry| entry.path());
    let python =
        versions.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("python3")));
    let both = python.flat_map(|p| [p.join("site-packages"), p.join("dist-packages")]);
    both.filter(|p| p.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_below_a_prefix() {
        let dir = testkit::ScratchDir::new().unwrap();
        let packages = dir.path().join("lib").join("python3.12").join("site-packages");
        std::fs::create_dir_all(&packages).unwrap();
        std::fs::create_dir_all(dir.path().join("lib").join("ruby3").join("site-packages")).unwrap();
        assert_eq!(packages_below(dir.path()), [packages]);
        assert!(packages_below(Path::new("/no/such/prefix")).is_empty());
    }
}
