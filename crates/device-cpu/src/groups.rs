//! The groups of processes that this one is in, and what they may use. A container is such a group: what is beyond its
//! limit ends the process, so the limit is the machine's memory.
//!
//! Linux has two versions of groups. The second has one tree of them below `sys/fs/cgroup`; the first has a tree for
//! each kind of limit, in `sys/fs/cgroup/memory` and so on. A limit binds all groups below it.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// A number from which on the first version means "no limit".
const NO_LIMIT: u64 = 1 << 60;

/// The groups of a process, and where the system tells of them.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    /// Those that limit memory, from the innermost to the outermost.
    memory: Vec<Group>,
    /// Those that limit the time on processors.
    cores: Vec<Group>,
}

/// A group.
#[derive(Clone, Debug)]
struct Group {
    folder: PathBuf,
    names: &'static Names,
}

/// What the files of a group are called.
#[derive(Debug)]
struct Names {
    limit: &'static str,
    used: &'static str,
    /// The lines of `memory.stat` whose bytes the system takes back when it needs them: copies of files.
    reclaimable: &'static [&'static str],
}

const SECOND: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

const FIRST: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};

/// Memory as the groups of a process allow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMemory {
    /// The strictest limit.
    pub limit: u64,
    /// What is left of the group that has the least left.
    pub free: u64,
}

impl Groups {
    /// Those of this process.
    #[must_use]
    pub fn of_this_process() -> Groups {
        Groups::below(Path::new("/"))
    }

    /// Those that `proc/self/cgroup` and `sys/fs/cgroup` below a folder tell of. A system without them has none.
    #[must_use]
    pub fn below(root: &Path) -> Groups {
        let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let tree = root.join("sys/fs/cgroup");
        let mut groups = Groups::default();
        // Each line is a number, the kinds of limits, and the path; the second version has no kinds.
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(kinds), Some(path)) = (parts.next(), parts.next()) else { continue };
            if kinds.is_empty() {
                let found = chain(&tree, path, &SECOND);
                groups.memory.extend(found.clone());
                groups.cores.extend(found);
            }
            for kind in kinds.split(',') {
                match kind {
                    "memory" => groups.memory.extend(chain(&tree.join("memory"), path, &FIRST)),
                    "cpu" => groups.cores.extend(chain(&tree.join("cpu"), path, &FIRST)),
                    _ => {}
                }
            }
        }
        groups
    }

    /// What they allow now; nothing if no group has a limit.
    #[must_use]
    pub fn memory(&self) -> Option<GroupMemory> {
        let limited = self.memory.iter().filter_map(Group::memory);
        limited.reduce(|a, b| GroupMemory { limit: a.limit.min(b.limit), free: a.free.min(b.free) })
    }

    /// How many processors' time they allow, in parts of one.
    #[must_use]
    pub fn cores(&self) -> Option<f64> {
        self.cores.iter().filter_map(Group::cores).reduce(f64::min)
    }
}

impl Group {
    fn memory(&self) -> Option<GroupMemory> {
        let limit = self.number(self.names.limit).filter(|limit| *limit < NO_LIMIT)?;
        let used = self.number(self.names.used).unwrap_or(0);
        let stat = self.text("memory.stat").unwrap_or_default();
        let lines = stat.lines().filter_map(|line| line.split_once(' '));
        let reclaimable = lines
            .filter(|(name, _)| self.names.reclaimable.contains(name))
            .filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok())
            .fold(0, u64::saturating_add);
        Some(GroupMemory { limit, free: limit.saturating_sub(used.saturating_sub(reclaimable)) })
    }

    fn cores(&self) -> Option<f64> {
        let (quota, period) = match self.text("cpu.max") {
            Some(both) => {
                both.split_once(' ').map(|(quota, period)| (quota.to_owned(), period.to_owned()))?
            }
            None => (self.text("cpu.cfs_quota_us")?, self.text("cpu.cfs_period_us")?),
        };
        // Without a limit the second version says "max" and the first -1.
        let quota = quota.parse::<f64>().ok().filter(|quota| *quota > 0.0)?;
        Some(quota / period.parse::<f64>().ok().filter(|period| *period > 0.0)?)
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.text(file)?.parse().ok()
    }

    fn text(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(file)).ok().map(|text| text.trim().to_owned())
    }
}

/// The group of a path and those around it. In a container the path may be the one outside of it, of which nothing is
/// seen here: then the root of the tree is the container's own group.
fn chain(tree: &Path, path: &str, names: &'static Names) -> Vec<Group> {
    let parts = Path::new(path).components().filter(|part| *part != Component::RootDir);
    let inner: PathBuf = parts.collect();
    let is_outside = inner.components().any(|part| part == Component::ParentDir);
    let leaf = if is_outside { tree.to_owned() } else { tree.join(inner) };
    let folders = leaf.ancestors().take_while(|folder| folder.starts_with(tree));
    folders.map(|folder| Group { folder: folder.to_owned(), names }).collect()
}

#[cfg(test)]
mod tests {
    use testkit::ScratchDir;

    use super::*;

    /// A system with these files.
    fn system(files: &[(&str, &str)]) -> (ScratchDir, Groups) {
        let dir = ScratchDir::new().unwrap();
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        let groups = Groups::below(dir.path());
        (dir, groups)
    }

    #[test]
    fn the_strictest_group_of_the_second_version_counts() {
        let (_dir, groups) = system(&[
            ("proc/self/cgroup", "0::/outer/inner"),
            ("sys/fs/cgroup/outer/inner/memory.max", "max"),
            ("sys/fs/cgroup/outer/inner/memory.current", "900"),
            ("sys/fs/cgroup/outer/inner/cpu.max", "300000 100000"),
            ("sys/fs/cgroup/outer/memory.max", "8000"),
            ("sys/fs/cgroup/outer/memory.current", "5000"),
            (
                "sys/fs/cgroup/outer/memory.stat",
                "anon 1000\nactive_file 700\ninactive_file 300\nfile_mapped 90",
            ),
            ("sys/fs/cgroup/outer/cpu.max", "150000 100000"),
        ]);
        assert_eq!(groups.memory(), Some(GroupMemory { limit: 8000, free: 4000 }));
        assert_eq!(groups.cores(), Some(1.5));
    }

    #[test]
    fn a_full_outer_group_leaves_nothing_to_an_inner_one() {
        let (_dir, groups) = system(&[
            ("proc/self/cgroup", "0::/outer/inner"),
            ("sys/fs/cgroup/outer/inner/memory.max", "1000"),
            ("sys/fs/cgroup/outer/inner/memory.current", "100"),
            ("sys/fs/cgroup/outer/memory.max", "5000"),
            ("sys/fs/cgroup/outer/memory.current", "4990"),
        ]);
        assert_eq!(groups.memory(), Some(GroupMemory { limit: 1000, free: 10 }));
    }

    #[test]
    fn groups_of_the_first_version_have_a_tree_for_each_limit() {
        let (_dir, groups) = system(&[
            ("proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n3:cpu,cpuacct:/c\n0::/"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "9223372036854771712"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "1288490188"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "288490188"),
            (
                "sys/fs/cgroup/memory/a/b/memory.stat",
                "active_file 5\ntotal_active_file 8\ntotal_inactive_file 80",
            ),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"),
            ("sys/fs/cgroup/cpu/c/cpu.cfs_quota_us", "50000"),
            ("sys/fs/cgroup/cpu/c/cpu.cfs_period_us", "100000"),
        ]);
        assert_eq!(groups.memory(), Some(GroupMemory { limit: 1_288_490_188, free: 1_000_000_088 }));
        assert_eq!(groups.cores(), Some(0.5));
    }

    #[test]
    fn a_container_that_sees_only_its_own_group_is_limited_by_it() {
        for path in ["0::/docker/1234", "0::/", "0::/../../elsewhere"] {
            let (_dir, groups) = system(&[("proc/self/cgroup", path), ("sys/fs/cgroup/memory.max", "1234")]);
            assert_eq!(groups.memory(), Some(GroupMemory { limit: 1234, free: 1234 }), "{path}");
        }
        let (_dir, groups) = system(&[
            ("proc/self/cgroup", "4:memory:/docker/1234"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "99"),
        ]);
        assert_eq!(groups.memory().map(|memory| memory.limit), Some(99));
    }

    #[test]
    fn without_groups_there_are_no_limits() {
        for text in ["", "rubbish", "0::/a\n4:memory", "4:memory:/x"] {
            let (_dir, groups) = system(&[("proc/self/cgroup", text)]);
            assert_eq!((groups.memory(), groups.cores()), (None, None), "{text}");
        }
        let (_dir, groups) = system(&[
            ("proc/self/cgroup", "0::/"),
            ("sys/fs/cgroup/memory.max", "max"),
            ("sys/fs/cgroup/cpu.max", "max 100000"),
        ]);
        assert_eq!((groups.memory(), groups.cores()), (None, None));
    }
}
