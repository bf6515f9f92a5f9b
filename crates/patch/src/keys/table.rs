//! Tables of other names for a model's layers, block by block.

use super::{KeyMap, Rows};

/// A kind of block that a model has several of.
pub struct Blocks {
    /// What the blocks are called in files, such as `transformer_blocks`.
    pub file: &'static str,
    /// What the model calls them, such as `double_blocks`.
    pub model: &'static str,
    /// Layers: the name in files, and the model's.
    pub layers: &'static [(&'static str, &'static str)],
    /// Layers that the model has fused: the model's name, and those of the equal parts in files.
    pub fused: &'static [(&'static str, &'static [&'static str])],
}

impl KeyMap {
    /// Adds other names for all layers of the blocks that are there.
    pub fn add_blocks(&mut self, blocks: &Blocks) {
        let mut index = 0;
        while self.add_block(blocks, index) {
            index += 1;
        }
    }

    /// Adds other names for layers outside of blocks.
    pub fn add_layers(&mut self, layers: &[(&str, &str)]) {
        for (file, model) in layers {
            self.alias(file, model);
        }
    }

    /// Calls equal parts of a layer by other names. Whether it is there and can be divided.
    pub fn add_fused(&mut self, layer: &str, parts: &[String]) -> bool {
        let Some((rows, _)) = self.matrix(layer).filter(|(rows, _)| rows.is_multiple_of(parts.len())) else {
            return false;
        };
        let len = rows / parts.len();
        parts.iter().enumerate().all(|(i, part)| self.alias_rows(part, layer, Rows { start: i * len, len }))
    }

    /// Whether anything of the block is there.
    fn add_block(&mut self, blocks: &Blocks, index: usize) -> bool {
        let (file, model) = (format!("{}.{index}", blocks.file), format!("{}.{index}", blocks.model));
        let mut found = false;
        for (name, layer) in blocks.layers {
            found |= self.alias(&format!("{file}.{name}"), &format!("{model}.{layer}"));
        }
        for (layer, parts) in blocks.fused {
            let parts: Vec<String> = parts.iter().map(|part| format!("{file}.{part}")).collect();
            found |= self.add_fused(&format!("{model}.{layer}"), &parts);
        }
        found
    }
}
