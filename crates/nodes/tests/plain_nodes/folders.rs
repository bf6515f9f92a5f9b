//! Model folders, names from outside, extra paths and names for new files, on real folders.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use runtime::Folders;
use runtime::folders::{Layout, Place};
use testkit::ScratchDir;

fn put(path: PathBuf) -> PathBuf {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, b"").unwrap();
    path
}

/// Waits until the dates of what was just written are past.
fn settle() {
    std::thread::sleep(Duration::from_millis(40));
}

#[test]
fn listings_join_folders_and_take_only_known_endings() {
    let base = ScratchDir::new().unwrap();
    let models = base.join("models");
    put(models.join("unet/b.safetensors"));
    put(models.join("diffusion_models/a/deep/c.SAFETENSORS"));
    put(models.join("diffusion_models/b.safetensors"));
    put(models.join("diffusion_models/d.gguf"));
    put(models.join("diffusion_models/readme.txt"));
    put(models.join("diffusion_models/.git/x.safetensors"));
    put(models.join("clip/e.safetensors"));
    put(models.join("classifiers/plain"));
    put(models.join("classifiers/other.bin"));
    put(base.join("output/loras/own.safetensors"));
    let folders = Folders::at(base.path());
    assert_eq!(folders.list("diffusion_models"), ["a/deep/c.SAFETENSORS", "b.safetensors"]);
    assert_eq!(folders.list("unet"), folders.list("diffusion_models"));
    assert_eq!(folders.list("unet_gguf"), ["d.gguf"]);
    assert_eq!(folders.list("clip"), ["e.safetensors"]);
    assert_eq!(folders.list("classifiers"), ["plain"]);
    assert_eq!(folders.list("loras"), ["own.safetensors"]);
    assert!(folders.list("vae").is_empty() && folders.list("nothing").is_empty());
    assert_eq!(
        folders.find("unet", "b.safetensors"),
        Some(models.join("unet/b.safetensors")),
        "the first place wins"
    );
    assert_eq!(
        folders.places("clip"),
        [models.join("text_encoders"), models.join("clip"), base.join("output/clip")]
    );
    assert!(folders.keys().any(|key| key == "latent_upscale_models"));
}

#[test]
fn a_listing_follows_what_happens_in_the_folders() {
    let base = ScratchDir::new().unwrap();
    let folders = Folders::at(base.path());
    assert!(folders.list("loras").is_empty());
    put(base.join("models/loras/a.safetensors"));
    assert_eq!(folders.list("loras"), ["a.safetensors"]);
    // Without a pause: the folder's date may be the same as before.
    put(base.join("models/loras/b.safetensors"));
    assert_eq!(folders.list("loras"), ["a.safetensors", "b.safetensors"]);
    settle();
    assert_eq!(folders.list("loras").len(), 2);
    put(base.join("models/loras/sub/c.safetensors"));
    assert_eq!(folders.list("loras").len(), 3);
    settle();
    fs::remove_file(base.join("models/loras/a.safetensors")).unwrap();
    assert_eq!(folders.list("loras"), ["b.safetensors", "sub/c.safetensors"]);
}

#[test]
fn a_listing_that_is_kept_costs_next_to_nothing() {
    let base = ScratchDir::new().unwrap();
    for number in 0..300 {
        put(base.join(format!("models/loras/{}/{number}.safetensors", number % 10)));
    }
    let folders = Folders::at(base.path());
    settle();
    assert_eq!(folders.listing("loras").len(), 300);
    let started = Instant::now();
    for _ in 0..2_000 {
        assert_eq!(folders.listing("loras").len(), 300);
    }
    // Two thousand validations in a second need it; the bound leaves room for a busy machine.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_circles_end() {
    use std::os::unix::fs::symlink;
    let base = ScratchDir::new().unwrap();
    let elsewhere = ScratchDir::new().unwrap();
    let loras = base.join("models/loras");
    put(loras.join("own.safetensors"));
    put(elsewhere.join("far.safetensors"));
    symlink(elsewhere.path(), loras.join("linked")).unwrap();
    symlink(elsewhere.join("far.safetensors"), loras.join("alias.safetensors")).unwrap();
    symlink(&loras, loras.join("circle")).unwrap();
    symlink(&loras, elsewhere.join("back")).unwrap();
    symlink(base.join("gone"), loras.join("gone.safetensors")).unwrap();
    let folders = Folders::at(base.path());
    assert_eq!(folders.list("loras"), ["alias.safetensors", "linked/far.safetensors", "own.safetensors"]);
    assert_eq!(folders.find("loras", "linked/far.safetensors"), Some(loras.join("linked/far.safetensors")));
    assert_eq!(folders.find("loras", "gone.safetensors"), None);
}

#[test]
fn names_cannot_leave_their_folder() {
    let base = ScratchDir::new().unwrap();
    put(base.join("secret.safetensors"));
    put(base.join("models/loras/a.safetensors"));
    let folders = Folders::at(base.path());
    assert_eq!(folders.find("loras", "../../secret.safetensors"), None);
    assert_eq!(folders.find("loras", base.join("secret.safetensors").to_str().unwrap()), None);
    assert!(folders.find("loras", "x/../../a.safetensors").is_some(), "it leads back to the folder itself");
    assert_eq!(folders.find("loras", ""), None);
    assert_eq!(folders.find("loras", ".."), None);
    for name in ["../secret.safetensors", "x/../../secret", "/etc/passwd", "..", "", "."] {
        assert!(folders.inside(Place::Input, name).is_err(), "{name}");
    }
    assert_eq!(folders.inside(Place::Temp, "a/../b.png").unwrap(), base.join("temp/b.png"));
}

#[test]
fn annotated_names_choose_the_folder() {
    let base = ScratchDir::new().unwrap();
    let folders = Folders::at(base.path());
    assert_eq!(folders.annotated("x.png").unwrap(), base.join("input/x.png"));
    assert_eq!(folders.annotated("a/x.png [output]").unwrap(), base.join("output/a/x.png"));
    assert_eq!(folders.annotated("x.png [temp]").unwrap(), base.join("temp/x.png"));
    assert_eq!(folders.annotated("x [input]").unwrap(), base.join("input/x"));
    assert_eq!(folders.annotated("x [other]").unwrap(), base.join("input/x [other]"));
    assert!(folders.annotated("../x.png [output]").is_err());
    assert_eq!(Place::of("x.png [output]"), ("x.png", Some(Place::Output)));
    assert_eq!(Place::named("temp"), Some(Place::Temp));
    assert_eq!(Place::named("user"), None);
}

#[test]
fn files_from_anywhere_can_be_added_by_name() {
    let base = ScratchDir::new().unwrap();
    let file = put(base.join("elsewhere/demo.bin"));
    let mut folders = Folders::at(base.path());
    folders.add_file("diffusion_models", "demo", &file);
    assert_eq!(folders.list("unet"), ["demo"]);
    assert_eq!(folders.find("diffusion_models", "demo"), Some(file));
    let own = put(base.join("models/unet/demo"));
    assert_eq!(folders.find("diffusion_models", "demo"), Some(own), "a file in the folders goes first");
}

#[test]
fn a_layout_can_differ_from_the_usual_one() {
    let base = ScratchDir::new().unwrap();
    let layout =
        Layout { output: base.join("elsewhere/out"), models: base.join("m"), ..Layout::at(base.path()) };
    let folders = Folders::new(&layout);
    assert_eq!(folders.output, base.join("elsewhere/out"));
    assert_eq!(folders.places("vae"), [base.join("m/vae"), base.join("elsewhere/out/vae")]);
    assert_eq!(folders.places("custom_nodes"), [base.join("custom_nodes")]);
    let mut folders = Folders::at(Path::new("some/base"));
    assert!(folders.input.is_absolute() && folders.input.ends_with("some/base/input"));
    folders.add("vae", Path::new("/more"));
    assert_eq!(folders.places("vae")[1], Path::new("/more"), "what was saved is searched last");
}

const YAML: &str = "
comfyui:
    base_path: ~/$NAME/ComfyUI
    is_default: true
    checkpoints: models/checkpoints/
    clip: |
        models/clip/
        /abs/text
    own_kind: own
a111:
    base_path: sub
    loras: a
    vae: ../b
plain:
    loras: c
nothing:
";

#[test]
fn extra_paths_are_read_from_yaml() {
    let base = ScratchDir::new().unwrap();
    let file = base.join("extra_model_paths.yaml");
    fs::write(&file, YAML).unwrap();
    let mut folders = Folders::at(base.path());
    let variable = |name: &str| match name {
        "HOME" => Some("/home/me".to_owned()),
        "NAME" => Some("disk".to_owned()),
        _ => None,
    };
    folders.add_extra_paths(&file, &variable).unwrap();
    let home = Path::new("/home/me/disk/ComfyUI");
    assert_eq!(folders.places("checkpoints")[0], home.join("models/checkpoints"), "the default goes first");
    assert_eq!(folders.places("text_encoders")[..2], [PathBuf::from("/abs/text"), home.join("models/clip")]);
    assert_eq!(folders.places("clip_gguf")[..2], folders.places("text_encoders")[..2]);
    assert_eq!(folders.places("own_kind"), [home.join("own")]);
    let loras = folders.places("loras");
    assert_eq!(loras[1..3], [base.join("sub/a"), base.join("c")]);
    assert_eq!(folders.places("vae")[1], base.join("b"));
    put(base.join("own/any.thing"));
    folders.add("own_kind", &base.join("own"));
    assert_eq!(folders.list("own_kind"), ["any.thing"], "a new kind takes every file");
}

#[test]
fn broken_extra_paths_say_what_is_wrong() {
    let base = ScratchDir::new().unwrap();
    let file = base.join("x.yaml");
    let mut folders = Folders::at(base.path());
    let mut read = |text: &str| {
        fs::write(&file, text).unwrap();
        folders.add_extra_paths(&file, &|_| None).map_err(|error| error.to_string())
    };
    assert!(read("").is_ok() && read("# nothing\n").is_ok());
    assert!(read("a: [1, 2").unwrap_err().contains("x.yaml"));
    assert!(read("- a\n- b\n").unwrap_err().contains("sections"));
    assert!(read("a:\n  loras: [x, y]\n").unwrap_err().contains("loras"));
    assert!(read("a:\n  base_path: [x]\n").unwrap_err().contains("base_path"));
    assert!(
        folders
            .add_extra_paths(&base.join("none.yaml"), &|_| None)
            .unwrap_err()
            .to_string()
            .contains("none.yaml")
    );
}

#[test]
fn new_files_are_numbered_on() {
    let base = ScratchDir::new().unwrap();
    let folders = Folders::at(base.path());
    let mut place = folders.save_place(Place::Output, "a/b/cat", (64, 32)).unwrap();
    assert_eq!((place.subfolder.as_str(), place.stem.as_str(), place.counter), ("a/b", "cat", 1));
    assert_eq!(place.folder, base.join("output/a/b"));
    assert!(place.folder.is_dir());
    assert_eq!(place.next_name(0, "png"), "cat_00001_.png");
    assert_eq!(place.next_name(1, "png"), "cat_00002_.png");
    for name in ["cat_00007_.png", "cat_00003_.png", "catalogue_00009_.png", "cat_x_.png", "dog_00020_.png"] {
        put(base.join("output/a/b").join(name));
    }
    assert_eq!(folders.save_place(Place::Output, "a/b/cat", (0, 0)).unwrap().counter, 8);
    assert_eq!(folders.save_place(Place::Output, "cat[x]", (0, 0)).unwrap().subfolder, "");
}

#[test]
fn two_who_save_at_once_get_names_of_their_own() {
    let base = ScratchDir::new().unwrap();
    let folders = Folders::at(base.path());
    // Both look at the folder before either has saved.
    let mut places = [0, 1].map(|_| folders.save_place(Place::Output, "cat", (0, 0)).unwrap());
    let [first, second] = places.each_mut().map(|place| place.save(0, "png", b"x").unwrap());
    assert_eq!((first.as_str(), second.as_str()), ("cat_00001_.png", "cat_00002_.png"));
    let saved: Vec<String> = std::thread::scope(|scope| {
        let savers = [0u8; 4].map(|byte| {
            let folders = folders.clone();
            scope.spawn(move || {
                let mut place = folders.save_place(Place::Output, "dog", (0, 0)).unwrap();
                (0..25).map(|batch| place.save(batch, "png", &[byte]).unwrap()).collect::<Vec<_>>()
            })
        });
        savers.into_iter().flat_map(|saver| saver.join().unwrap()).collect()
    });
    let names: std::collections::BTreeSet<&String> = saved.iter().collect();
    assert_eq!(names.len(), 100, "every file has a name of its own");
    assert_eq!(fs::read_dir(base.join("output")).unwrap().count(), 102, "and nothing else is left");
    // The last number that there is: a name cannot be found, and nobody waits for one for ever.
    put(base.join(format!("output/end_{}_.png", u64::MAX)));
    let mut end = folders.save_place(Place::Output, "end", (0, 0)).unwrap();
    assert!(end.save(0, "png", b"x").is_err());
    assert_eq!(fs::read_dir(base.join("output")).unwrap().count(), 103);
}

#[test]
fn what_a_killed_program_left_is_hidden_and_goes() {
    let base = ScratchDir::new().unwrap();
    let mut folders = Folders::at(base.path());
    let [old, new] =
        [".gantry-old123.part", ".gantry-new123.part"].map(|name| base.join("output").join(name));
    put(old.clone());
    put(new.clone());
    put(base.join("models/custom/.gantry-half12.part"));
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    folders.save_place(Place::Output, "cat", (0, 0)).unwrap().save(0, "png", b"x").unwrap();
    assert!(!old.exists() && new.exists(), "one that is being written stays");
    folders.add("any", &base.join("models/custom"));
    assert!(folders.list("any").is_empty(), "{:?}", folders.list("any"));
}

#[test]
fn prefixes_have_variables_and_stay_in_the_output_folder() {
    let base = ScratchDir::new().unwrap();
    let folders = Folders::at(base.path());
    let place = |prefix: &str| {
        folders.save_place(Place::Output, prefix, (640, 480)).map_err(|error| error.to_string())
    };
    let mut sized = place("%width%x%height%/n%batch_num%").unwrap();
    assert_eq!(sized.subfolder, "640x480");
    assert_eq!(sized.next_name(3, "png"), "n3_00001_.png");
    let dated = place("%year%-%month%-%day%_%hour%%minute%%second%").unwrap();
    assert_eq!(dated.stem.len(), "2026-01-02_030405".len(), "{}", dated.stem);
    assert!(dated.stem.bytes().all(|byte| byte.is_ascii_digit() || b"-_".contains(&byte)));
    for prefix in ["../x", "a/../../x", "/tmp/x"] {
        assert!(place(prefix).unwrap_err().contains("outside"), "{prefix}");
    }
    let inside = base.join("output/sub/x");
    assert_eq!(place(inside.to_str().unwrap()).unwrap().subfolder, "sub");
    assert_eq!(place("a/../b/x").unwrap().subfolder, "b");
    assert_eq!(place("").unwrap().stem, "ComfyUI");
}

#[test]
fn pictures_in_a_folder_are_listed_by_their_endings() {
    let base = ScratchDir::new().unwrap();
    for name in ["b.PNG", "a.jpg", "c.txt", "d.webp", "sub/e.png", "noending"] {
        put(base.join("input").join(name));
    }
    assert_eq!(*Folders::at(base.path()).pictures(Place::Input), ["a.jpg", "b.PNG", "d.webp"]);
}
