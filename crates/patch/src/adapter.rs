//! What a patch says about one weight, in each of the known forms, and whether it fits the weight.

use meta::Shape;

use crate::factor::flat;
use crate::{Factor, Oft, Patch};

/// A change to one weight as a file describes it.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// What is added to the weight (or put in its place).
    pub delta: Delta,
    /// Lengths to which rows or columns are brought afterwards (DoRA).
    pub dora: Option<Dora>,
}

/// The forms of a change. In each, a missing `alpha` means a factor of 1; otherwise the factor is `alpha / rank`.
#[derive(Clone, Debug)]
pub enum Delta {
    /// LoRA: `up · down`; with a `mid`, `down` is first spread over the kernel.
    Lora {
        /// `[out, rank]`.
        up: Factor,
        /// `[rank, in, kernel…]`.
        down: Factor,
        /// `[rank, rank, kernel…]`.
        mid: Option<Factor>,
        /// The factor times the rank.
        alpha: Option<f64>,
    },
    /// LoHa: two products multiplied value by value.
    Loha {
        /// The first product.
        w1: Product,
        /// The second product.
        w2: Product,
        /// The factor times the rank.
        alpha: Option<f64>,
    },
    /// LoKr: the Kronecker product of two blocks.
    Lokr {
        /// The outer block.
        w1: KroneckerFactor,
        /// The inner block.
        w2: KroneckerFactor,
        /// The factor times the rank.
        alpha: Option<f64>,
    },
    /// GLoRA: `weight · a1 · a2 + b1 · b2`, or with the letters exchanged in older files.
    Glora {
        /// Right factors of the weight, in the file's order, then the summand's.
        a: [Factor; 2],
        /// The summand's factors, in the file's order.
        b: [Factor; 2],
        /// The factor times the rank.
        alpha: Option<f64>,
    },
    /// OFT: blocks of rows of the weight are rotated. Its strength counts twice, as in the reference.
    Oft(Oft),
    /// The difference itself.
    Difference(Factor),
    /// New values; the strength does not matter.
    Replacement(Factor),
    /// The weight of another model, with the patches that it has there.
    Weight(Box<OtherWeight>),
    /// Nothing is added.
    Nothing,
}

/// A weight of another model.
#[derive(Clone, Debug)]
pub struct OtherWeight {
    /// Its values, which stay in their file until a copy is changed.
    pub values: Factor,
    /// What multiplies them (scaled fp8).
    pub scale: Option<f32>,
    /// What is patched into it, in order.
    pub patches: Vec<Patch>,
}

/// `a · b`, or with a core (Tucker form) `Σ core[i, j, kernel…] · b[j, :] · a[i, :]`.
#[derive(Clone, Debug)]
pub struct Product {
    /// `[out, rank]`; `[rank, out]` if there is a core.
    pub a: Factor,
    /// `[rank, in…]`.
    pub b: Factor,
    /// `[rank, rank, kernel…]`.
    pub core: Option<Factor>,
}

/// A block of a Kronecker product.
#[derive(Clone, Debug)]
pub enum KroneckerFactor {
    /// As it is.
    Whole(Factor),
    /// Itself a product.
    Product(Box<Product>),
}

/// DoRA: rows (or columns) of the changed weight are brought to given lengths.
#[derive(Clone, Debug)]
pub struct Dora {
    /// The lengths: one per output, or one per input.
    pub scale: Factor,
    /// What the present length is taken from.
    pub norm: DoraNorm,
}

/// Of which weight a row's present length is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoraNorm {
    /// `dora_scale`, as ComfyUI 0.7 evaluates it: of the unchanged weight where there is one length per output, of the
    /// changed weight where there is one per input.
    ByAxis,
    /// `lora_magnitude_vector`, as PEFT evaluates it: of the changed weight.
    Changed,
}

/// Rows and columns of a change.
type Size = (usize, usize);

impl Adapter {
    /// The form's name.
    pub fn name(&self) -> &'static str {
        match (&self.delta, &self.dora) {
            (Delta::Lora { .. }, Some(_)) => "DoRA",
            (Delta::Lora { .. }, None) => "LoRA",
            (Delta::Loha { .. }, _) => "LoHa",
            (Delta::Lokr { .. }, _) => "LoKr",
            (Delta::Glora { .. }, _) => "GLoRA",
            (Delta::Oft(_), _) => "OFT",
            (Delta::Difference(_), _) => "difference",
            (Delta::Replacement(_), _) => "replacement",
            (Delta::Weight(_), _) => "merged weight",
            (Delta::Nothing, _) => "factor",
        }
    }

    /// The tensors it is made of.
    pub fn factors(&self) -> Vec<&Factor> {
        let mut all = match &self.delta {
            Delta::Lora { up, down, mid, .. } => {
                [Some(up), Some(down), mid.as_ref()].into_iter().flatten().collect()
            }
            Delta::Loha { w1, w2, .. } => [w1.factors(), w2.factors()].concat(),
            Delta::Lokr { w1, w2, .. } => [w1.factors(), w2.factors()].concat(),
            Delta::Glora { a, b, .. } => a.iter().chain(b).collect(),
            Delta::Oft(oft) => vec![oft.turns()],
            Delta::Difference(values) | Delta::Replacement(values) => vec![values],
            Delta::Weight(other) => [vec![&other.values], other.patch_factors()].concat(),
            Delta::Nothing => Vec::new(),
        };
        all.extend(self.dora.as_ref().map(|dora| &dora.scale));
        all
    }

    /// Those of them that wait on a device for copies to arrive. A weight of another model is as large as the copy itself,
    /// so it comes from its file for each.
    pub(crate) fn waiting_factors(&self) -> Vec<&Factor> {
        match &self.delta {
            Delta::Weight(other) => other.patch_factors(),
            _ => self.factors(),
        }
    }

    /// Stored bytes of those tensors.
    pub fn bytes(&self) -> u64 {
        self.factors().iter().map(|factor| factor.bytes().len() as u64).sum()
    }

    /// Whether the result depends on the weight's own values, so that it cannot be added to a layer's output
    /// without them.
    pub fn needs_weight(&self) -> bool {
        let depends = matches!(
            self.delta,
            Delta::Glora { .. } | Delta::Oft(_) | Delta::Replacement(_) | Delta::Nothing
        );
        self.dora.is_some() || depends
    }

    /// Additions and multiplications to change a weight of this shape, roughly.
    pub fn merge_flops(&self, target: &Shape) -> u64 {
        let (rows, columns) = flat(target);
        let values = rows as u64 * columns as u64;
        let product = |p: &Product| 2 * values * p.rank() as u64;
        let delta = match &self.delta {
            Delta::Lora { down, .. } => 2 * values * down.flat().0 as u64,
            Delta::Loha { w1, w2, .. } => product(w1) + product(w2) + values,
            Delta::Lokr { .. } | Delta::Difference(_) => values,
            Delta::Glora { a, b, .. } => {
                values * (a[0].shape().last() + a[1].shape().last() + 2 * b[1].flat().0) as u64
            }
            Delta::Oft(oft) => 2 * values * oft.block_rows() as u64,
            Delta::Weight(_) => 2 * values,
            Delta::Replacement(_) | Delta::Nothing => 0,
        };
        delta + values * if self.dora.is_some() { 6 } else { 1 }
    }

    /// Whether the change has the size of the target; otherwise what was expected and what it has.
    pub(crate) fn check(&self, target: &Shape) -> Result<(), (String, String)> {
        let (rows, columns) = flat(target);
        let size = match &self.delta {
            Delta::Lora { up, down, mid, .. } => lora_size(up, down, mid.as_ref()),
            Delta::Loha { w1, w2, .. } => same_size(w1, w2),
            Delta::Lokr { w1, w2, .. } => kronecker_size(w1, w2),
            Delta::Glora { a, b, .. } => glora_size(a, b, target),
            Delta::Oft(oft) => Ok((oft.rows(), columns)),
            Delta::Difference(values) | Delta::Replacement(values) => Ok(values.flat()),
            Delta::Weight(other) => Ok(other.values.flat()),
            Delta::Nothing => Ok((rows, columns)),
        };
        let expected = || format!("[{rows}, {columns}]");
        let (got_rows, got_columns) = size.map_err(|got| (expected(), got))?;
        if (got_rows, got_columns) != (rows, columns) {
            return Err((expected(), format!("[{got_rows}, {got_columns}]")));
        }
        match &self.dora {
            Some(dora) if dora.axis(target).is_none() => {
                let inputs = target.dims().get(1).copied().unwrap_or(1);
                Err((
                    format!("{rows} or {inputs} lengths"),
                    format!("lengths of shape {}", dora.scale.shape()),
                ))
            }
            _ => Ok(()),
        }
    }
}

impl Dora {
    /// The dimension along which there is one length per index: 0 (outputs) or 1 (inputs).
    pub(crate) fn axis(&self, target: &Shape) -> Option<usize> {
        let dims = target.dims();
        let count = self.scale.shape().count();
        let first = self.scale.shape().dims().first().copied().unwrap_or(1);
        match dims {
            [outputs, ..] if first == *outputs && count == *outputs => Some(0),
            [_, inputs, ..] if count == *inputs => Some(1),
            _ => None,
        }
    }
}

impl Delta {
    /// What multiplies the change beside the strength. For GLoRA the target decides the rank.
    pub(crate) fn factor(&self, target: &Shape) -> f64 {
        let (alpha, rank) = match self {
            Delta::Lora { down, alpha, .. } => (*alpha, Some(down.flat().0)),
            Delta::Loha { w1, alpha, .. } => (*alpha, Some(w1.b.flat().0)),
            Delta::Lokr { w1, w2, alpha } => (*alpha, w2.rank().or(w1.rank())),
            Delta::Glora { a, b, alpha } => (*alpha, glora_form(a, b, target).map(|(_, rank)| rank)),
            Delta::Oft(_)
            | Delta::Difference(_)
            | Delta::Replacement(_)
            | Delta::Weight(_)
            | Delta::Nothing => (None, None),
        };
        match (alpha, rank) {
            (Some(alpha), Some(rank)) => alpha / rank as f64,
            _ => 1.0,
        }
    }
}

impl OtherWeight {
    /// The tensors of its patches.
    fn patch_factors(&self) -> Vec<&Factor> {
        self.patches.iter().flat_map(|patch| patch.adapter().factors()).collect()
    }
}

impl Product {
    fn factors(&self) -> Vec<&Factor> {
        [&self.a, &self.b].into_iter().chain(&self.core).collect()
    }

    fn rank(&self) -> usize {
        self.b.flat().0
    }

    /// The size of the product, or what does not fit inside it.
    pub(crate) fn size(&self) -> Result<Size, String> {
        let ((a_rows, a_columns), (b_rows, b_columns)) = (self.a.flat(), self.b.flat());
        let Some(core) = &self.core else {
            return if a_columns == b_rows { Ok((a_rows, b_columns)) } else { Err(of(&[&self.a, &self.b])) };
        };
        match core.shape().dims() {
            [i, j, kernel @ ..] if *i == a_rows && *j == b_rows => {
                Ok((a_columns, kernel.iter().fold(b_columns, |n, d| n.saturating_mul(*d))))
            }
            _ => Err(of(&[&self.a, &self.b, core])),
        }
    }
}

impl KroneckerFactor {
    fn factors(&self) -> Vec<&Factor> {
        match self {
            KroneckerFactor::Whole(factor) => vec![factor],
            KroneckerFactor::Product(product) => product.factors(),
        }
    }

    fn rank(&self) -> Option<usize> {
        match self {
            KroneckerFactor::Whole(_) => None,
            KroneckerFactor::Product(product) => Some(product.rank()),
        }
    }

    fn size(&self) -> Result<Size, String> {
        match self {
            KroneckerFactor::Whole(factor) => Ok(factor.flat()),
            KroneckerFactor::Product(product) => product.size(),
        }
    }
}

fn lora_size(up: &Factor, down: &Factor, mid: Option<&Factor>) -> Result<Size, String> {
    let ((rows, up_rank), (rank, columns)) = (up.flat(), down.flat());
    match mid.map(|mid| mid.shape().dims()) {
        None if up_rank == rank => Ok((rows, columns)),
        Some([outer, inner, kernel @ ..]) if *outer == up_rank && *inner == rank => {
            Ok((rows, kernel.iter().fold(columns, |n, d| n.saturating_mul(*d))))
        }
        _ => Err(of(&[up, down].into_iter().chain(mid).collect::<Vec<_>>())),
    }
}

fn same_size(w1: &Product, w2: &Product) -> Result<Size, String> {
    let (first, second) = (w1.size()?, w2.size()?);
    if first == second {
        Ok(first)
    } else {
        Err(format!("products of [{}, {}] and [{}, {}]", first.0, first.1, second.0, second.1))
    }
}

fn kronecker_size(w1: &KroneckerFactor, w2: &KroneckerFactor) -> Result<Size, String> {
    let ((a, b), (c, d)) = (w1.size()?, w2.size()?);
    Ok((a.saturating_mul(c), b.saturating_mul(d)))
}

/// Whether the file is of the older form, and the rank. Where both readings are possible, a square weight whose side
/// is the factors' long side decides for the older one.
pub(crate) fn glora_form(a: &[Factor; 2], b: &[Factor; 2], target: &Shape) -> Option<(bool, usize)> {
    let [(a1_rows, a1_columns), (a2_rows, a2_columns)] = [a[0].flat(), a[1].flat()];
    let [(b1_rows, b1_columns), (b2_rows, b2_columns)] = [b[0].flat(), b[1].flat()];
    let older = b2_columns == b1_rows && b1_rows == a1_rows && a1_rows == a2_columns;
    let newer = b2_rows == b1_columns && b1_columns == a1_columns && a1_columns == a2_rows;
    let square = target.dims().len() >= 2 && target.dims()[0] == target.dims()[1];
    match (older, newer) {
        (true, true) if square && a2_rows == target.dims()[0] => Some((true, a1_rows)),
        (_, true) => Some((false, a2_rows)),
        (true, false) => Some((true, a1_rows)),
        (false, false) => None,
    }
}

fn glora_size(a: &[Factor; 2], b: &[Factor; 2], target: &Shape) -> Result<Size, String> {
    let all = || of(&[&a[0], &a[1], &b[0], &b[1]]);
    let (older, _) = glora_form(a, b, target).ok_or_else(all)?;
    let (inner, outer) = if older { (a[1].flat().0, a[0].flat().1) } else { (a[0].flat().0, a[1].flat().1) };
    // The right factors multiply the inputs; over a kernel, only the newer form does so per position.
    let (_, columns) = flat(target);
    let inputs = if older { columns } else { target.dims().get(1).copied().unwrap_or(1) };
    if (inner, outer) != (inputs, inputs) {
        return Err(all());
    }
    Ok(if older { (b[1].flat().0, b[0].flat().1) } else { (b[0].flat().0, b[1].flat().1) })
}

/// The shapes of tensors that do not fit each other.
fn of(factors: &[&Factor]) -> String {
    let shapes: Vec<String> = factors.iter().map(|factor| factor.shape().to_string()).collect();
    format!("tensors of {} that do not fit each other", shapes.join(" and "))
}
