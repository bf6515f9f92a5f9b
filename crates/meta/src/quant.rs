//! Block quantisation formats: several values share scales, so only whole blocks have a size.

use std::fmt;

/// A GGUF block format. The names are those of the format's own specification.
#[allow(non_camel_case_types, reason = "the formats are known by these names")]
#[allow(missing_docs, reason = "each variant is its own specification's name")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuantFormat {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ1_S,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    IQ4_NL,
    IQ4_XS,
}

impl QuantFormat {
    /// Every format.
    pub const ALL: [QuantFormat; 18] = [
        QuantFormat::Q4_0,
        QuantFormat::Q4_1,
        QuantFormat::Q5_0,
        QuantFormat::Q5_1,
        QuantFormat::Q8_0,
        QuantFormat::Q2_K,
        QuantFormat::Q3_K,
        QuantFormat::Q4_K,
        QuantFormat::Q5_K,
        QuantFormat::Q6_K,
        QuantFormat::IQ1_S,
        QuantFormat::IQ2_XXS,
        QuantFormat::IQ2_XS,
        QuantFormat::IQ2_S,
        QuantFormat::IQ3_XXS,
        QuantFormat::IQ3_S,
        QuantFormat::IQ4_NL,
        QuantFormat::IQ4_XS,
    ];

    /// Values in one block.
    pub const fn block_len(self) -> usize {
        match self {
            QuantFormat::Q4_0
            | QuantFormat::Q4_1
            | QuantFormat::Q5_0
            | QuantFormat::Q5_1
            | QuantFormat::Q8_0
            | QuantFormat::IQ4_NL => 32,
            _ => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            QuantFormat::Q4_0 | QuantFormat::IQ4_NL => 18,
            QuantFormat::Q4_1 => 20,
            QuantFormat::Q5_0 => 22,
            QuantFormat::Q5_1 => 24,
            QuantFormat::Q8_0 => 34,
            QuantFormat::Q2_K => 84,
            QuantFormat::Q3_K | QuantFormat::IQ3_S => 110,
            QuantFormat::Q4_K => 144,
            QuantFormat::Q5_K => 176,
            QuantFormat::Q6_K => 210,
            QuantFormat::IQ1_S => 50,
            QuantFormat::IQ2_XXS => 66,
            QuantFormat::IQ2_XS => 74,
            QuantFormat::IQ2_S => 82,
            QuantFormat::IQ3_XXS => 98,
            QuantFormat::IQ4_XS => 136,
        }
    }

    /// The name in the format's specification.
    pub const fn name(self) -> &'static str {
        match self {
            QuantFormat::Q4_0 => "Q4_0",
            QuantFormat::Q4_1 => "Q4_1",
            QuantFormat::Q5_0 => "Q5_0",
            QuantFormat::Q5_1 => "Q5_1",
            QuantFormat::Q8_0 => "Q8_0",
            QuantFormat::Q2_K => "Q2_K",
            QuantFormat::Q3_K => "Q3_K",
            QuantFormat::Q4_K => "Q4_K",
            QuantFormat::Q5_K => "Q5_K",
            QuantFormat::Q6_K => "Q6_K",
            QuantFormat::IQ1_S => "IQ1_S",
            QuantFormat::IQ2_XXS => "IQ2_XXS",
            QuantFormat::IQ2_XS => "IQ2_XS",
            QuantFormat::IQ2_S => "IQ2_S",
            QuantFormat::IQ3_XXS => "IQ3_XXS",
            QuantFormat::IQ3_S => "IQ3_S",
            QuantFormat::IQ4_NL => "IQ4_NL",
            QuantFormat::IQ4_XS => "IQ4_XS",
        }
    }
}

impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Debug for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
