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

/// Where losslessly coded weights are kept for the next start.
pub(crate) fn coded_cache_dir() -> Option<PathBuf> {
    cache_dir().map(|dir| dir.join("coded"))
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

/// The configuration file of this user, whether or not it is there.
pub(crate) fn config_file() -> Option<PathBuf> {
    let said = || env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
    let system = if cfg!(windows) {
        env::var_os("APPDATA").map(PathBuf::from)
    } else {
        env::home_dir().map(|home| home.join(".config"))
    };
    said().or(system).map(|dir| dir.join("gantry").join("config.toml"))
}

/// The variables whose names begin so, those that are no text left out.
pub(crate) fn variables_with(prefix: &str) -> Vec<(String, String)> {
    let text = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    text.filter(|(name, _)| name.starts_with(prefix)).collect()
}

/// What `RUST_LOG` says of how loud the log is.
pub(crate) fn log_filter() -> Option<String> {
    env::var("RUST_LOG").ok().filter(|text| !text.trim().is_empty())
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

/// The command line as it was written, without secrets: clients are shown it.
pub(crate) fn command_line() -> Vec<String> {
    without_token(env::args_os().map(|arg| arg.to_string_lossy().into_owned()))
}

/// What stands in the place of a token.
const HIDDEN: &str = "***";

fn without_token(args: impl Iterator<Item = String>) -> Vec<String> {
    let mut hides = false;
    args.map(|arg| {
        if std::mem::replace(&mut hides, arg == "--token") {
            return HIDDEN.to_owned();
        }
        if arg.starts_with("--token=") { format!("--token={HIDDEN}") } else { arg }
    })
    .collect()
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
    fn tokens_are_not_shown() {
        let line = ["gantry", "serve", "--token", "s3cret", "--token=s3cret", "--token-file", "f"];
        let shown = without_token(line.into_iter().map(str::to_owned));
        assert_eq!(shown, ["gantry", "serve", "--token", "***", "--token=***", "--token-file", "f"]);
    }

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
