//! Writes valid files into `fuzz/corpus`, for the fuzz targets to start from.

use std::fs;
use std::path::Path;

use fuzz::Parser;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (parser, target) in [
        (Parser::Safetensors, "safetensors"),
        (Parser::Gguf, "gguf"),
        (Parser::SafetensorsIndex, "safetensors_index"),
        (Parser::Pickle, "pickle"),
    ] {
        let folder = corpus.join(target);
        fs::create_dir_all(&folder)?;
        for (number, seed) in parser.seeds().into_iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    let folder = corpus.join("coded_weights");
    fs::create_dir_all(&folder)?;
    for (number, seed) in fuzz::coded::seeds().into_iter().enumerate() {
        fs::write(folder.join(format!("seed-{number}")), seed)?;
    }
    Ok(())
}
