//! How families put the results of several encoders together.

use tensor::{Padding, Tensor};

use super::encoder::Encoded;
use crate::{Error, Result};

impl Encoded {
    /// FLUX.1: T5's tokens, and CLIP-L's pooled result (unprojected).
    pub fn flux(clip_l: &Encoded, t5: Encoded) -> Encoded {
        Encoded { pooled: clip_l.pooled.clone(), ..t5 }
    }

    /// SDXL: the tokens of CLIP-L and CLIP-G side by side, and CLIP-G's pooled result.
    pub fn sdxl(clip_l: &Encoded, clip_g: &Encoded) -> Result<Encoded> {
        let cond = side_by_side(clip_l, clip_g)?;
        let attention_mask = clip_l.attention_mask[..cond.dim(1)].to_vec();
        Ok(Encoded { cond, pooled: clip_g.pooled.clone(), attention_mask })
    }

    /// SD3: the tokens of CLIP-L and CLIP-G side by side, as wide as T5's, in front of those; and both pooled
    /// results in a row.
    pub fn sd3(clip_l: &Encoded, clip_g: &Encoded, t5: &Encoded) -> Result<Encoded> {
        let clips = side_by_side(clip_l, clip_g)?;
        let missing = t5.cond.dim(2).checked_sub(clips.dim(2)).ok_or_else(|| Error::Input {
            what: "the text of CLIP-L and CLIP-G",
            expected: format!("at most {} wide, as T5's", t5.cond.dim(2)),
            got: clips.dim(2).to_string(),
        })?;
        let clips = clips.pad(&[(0, 0), (0, 0), (0, missing)], Padding::Constant(0.0))?;
        let cond = Tensor::concat(&[&clips, &t5.cond.to_lane(clips.lane())?], 1)?;
        let pooled = match (&clip_l.pooled, &clip_g.pooled) {
            (Some(l), Some(g)) => Some(Tensor::concat(&[l, &g.to_lane(l.lane())?], 1)?),
            _ => None,
        };
        let mask = [&clip_l.attention_mask[..clips.dim(1)], &t5.attention_mask].concat();
        Ok(Encoded { cond, pooled, attention_mask: mask })
    }
}

/// Tokens of two encoders as one, as many as both have.
fn side_by_side(left: &Encoded, right: &Encoded) -> Result<Tensor> {
    let len = left.cond.dim(1).min(right.cond.dim(1));
    let right = right.cond.to_lane(left.cond.lane())?;
    Ok(Tensor::concat(&[&left.cond.slice(1, 0, len)?, &right.slice(1, 0, len)?], 2)?)
}
