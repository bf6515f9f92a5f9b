//! Writes checkpoints of the bundled manifests into a models folder:
//! `cargo run --release -p testkit --example write_checkpoints MODELS_DIR NAME [NAME ...]`.

use std::error::Error;

use testkit::Manifest;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [models_dir, names @ ..] = arguments.as_slice() else {
        return Err("say the models folder, then the manifests to write".into());
    };
    if names.is_empty() {
        return Err(format!("name the manifests to write: {}", Manifest::bundled_names()?.join(", ")).into());
    }
    for name in names {
        println!("{}", Manifest::bundled(name)?.write_to(models_dir)?.display());
    }
    Ok(())
}
