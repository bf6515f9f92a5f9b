//! The tensors of one layer put together into what they mean.

use std::sync::Arc;

use crate::adapter::Product;
use crate::suffix::Part;
use crate::{Adapter, Delta, Dora, DoraNorm, Error, Factor, KroneckerFactor, Naming, Oft, Result};

/// The tensors that a file has for one layer.
pub(crate) struct Group<'a> {
    pub(crate) file: &'a str,
    pub(crate) key: &'a str,
    pub(crate) naming: Naming,
    pub(crate) parts: Vec<(Part, Factor)>,
}

/// What a group means, and what of it means nothing.
pub(crate) struct Meaning {
    pub(crate) weight: Vec<Arc<Adapter>>,
    pub(crate) bias: Option<Arc<Adapter>>,
    pub(crate) unused: Vec<String>,
}

impl Group<'_> {
    pub(crate) fn resolve(mut self) -> Result<Meaning> {
        self.refuse()?;
        let alpha = self.alpha()?;
        let dora = self.dora();
        let mut weight = Vec::new();
        let rotated = self.oft(alpha)?;
        for delta in [self.lora(alpha)?, self.loha(alpha)?, self.lokr(alpha)?, self.glora(alpha)?, rotated] {
            weight.extend(delta.map(|delta| Arc::new(Adapter { delta, dora: dora.clone() })));
        }
        let dora_unused = dora.filter(|_| weight.is_empty());
        let plain = |delta| Arc::new(Adapter { delta, dora: None });
        weight.extend(self.take(Part::Diff).map(|values| plain(Delta::Difference(values))));
        weight.extend(self.take(Part::Set).map(|values| plain(Delta::Replacement(values))));
        let bias = self.take(Part::DiffBias).map(|values| plain(Delta::Difference(values)));
        let mut unused: Vec<String> =
            self.parts.into_iter().map(|(_, factor)| factor.name().to_owned()).collect();
        unused.extend(dora_unused.map(|dora| dora.scale.name().to_owned()));
        Ok(Meaning { weight, bias, unused })
    }

    fn take(&mut self, part: Part) -> Option<Factor> {
        let at = self.parts.iter().position(|(p, _)| *p == part)?;
        Some(self.parts.remove(at).1)
    }

    /// All of `parts`, if the first is there.
    fn take_all<const N: usize>(&mut self, parts: [(Part, &'static str); N]) -> Result<Option<[Factor; N]>> {
        let found = parts.map(|(part, name)| (self.take(part), name));
        let Some(present) = found.iter().find_map(|(factor, _)| factor.clone()) else { return Ok(None) };
        if let Some((_, missing)) = found.iter().find(|(factor, _)| factor.is_none()) {
            return Err(self.missing(&present, missing));
        }
        Ok(Some(found.map(|(factor, _)| factor.expect("a missing part returned above"))))
    }

    fn missing(&self, present: &Factor, missing: &'static str) -> Error {
        let (file, key) = (self.file.to_owned(), self.key.to_owned());
        Error::MissingPart { file, key, present: present.name().to_owned(), missing }
    }

    fn refuse(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(part, factor)| match part {
            Part::Refused(what) => {
                Err(Error::Unsupported { file: self.file.to_owned(), name: factor.name().to_owned(), what })
            }
            _ => Ok(()),
        })
    }

    fn alpha(&mut self) -> Result<Option<f64>> {
        let Some(factor) = self.take(Part::Alpha) else { return Ok(None) };
        match factor.scalar() {
            Some(alpha) if alpha.is_finite() => Ok(Some(alpha)),
            value => Err(Error::Value {
                file: self.file.to_owned(),
                name: factor.name().to_owned(),
                expected: "one finite number",
                got: value.map_or_else(
                    || format!("{} of {}", factor.encoding(), factor.shape()),
                    |v| v.to_string(),
                ),
            }),
        }
    }

    fn dora(&mut self) -> Option<Dora> {
        let by_axis = self.take(Part::DoraScale).map(|scale| Dora { scale, norm: DoraNorm::ByAxis });
        let changed = self.take(Part::Magnitude).map(|scale| Dora { scale, norm: DoraNorm::Changed });
        by_axis.or(changed)
    }

    fn lora(&mut self, alpha: Option<f64>) -> Result<Option<Delta>> {
        let mid = self.take(Part::Mid);
        let pair = self.take_all([(Part::Up, "up (B) matrix"), (Part::Down, "down (A) matrix")])?;
        match (pair, mid) {
            (Some([up, down]), mid) => Ok(Some(Delta::Lora { up, down, mid, alpha })),
            (None, Some(mid)) => Err(self.missing(&mid, "up and down matrices")),
            (None, None) => Ok(None),
        }
    }

    fn loha(&mut self, alpha: Option<f64>) -> Result<Option<Delta>> {
        let cores = self.take_all([(Part::HadaT1, "hada_t1"), (Part::HadaT2, "hada_t2")])?;
        let factors = self.take_all([
            (Part::HadaW1A, "hada_w1_a"),
            (Part::HadaW1B, "hada_w1_b"),
            (Part::HadaW2A, "hada_w2_a"),
            (Part::HadaW2B, "hada_w2_b"),
        ])?;
        let Some([a1, b1, a2, b2]) = factors else {
            return cores.map_or(Ok(None), |[core, _]| Err(self.missing(&core, "hada_w1_a")));
        };
        let (t1, t2) = cores.map_or((None, None), |[t1, t2]| (Some(t1), Some(t2)));
        let w1 = Product { a: a1, b: b1, core: t1 };
        Ok(Some(Delta::Loha { w1, w2: Product { a: a2, b: b2, core: t2 }, alpha }))
    }

    fn lokr(&mut self, alpha: Option<f64>) -> Result<Option<Delta>> {
        let (w1, w2) = (self.take(Part::KronW1), self.take(Part::KronW2));
        let p1 = self.take_all([(Part::KronW1A, "lokr_w1_a"), (Part::KronW1B, "lokr_w1_b")])?;
        let p2 = self.take_all([(Part::KronW2A, "lokr_w2_a"), (Part::KronW2B, "lokr_w2_b")])?;
        let core = self.take(Part::KronT2);
        let w1 = block(w1, p1, None);
        let w2 = block(w2, p2, core.clone());
        match (w1, w2, core) {
            (Some(w1), Some(w2), _) => Ok(Some(Delta::Lokr { w1, w2, alpha })),
            (Some(w1), None, _) => Err(self.missing(first(&w1), "lokr_w2")),
            (None, Some(w2), _) => Err(self.missing(first(&w2), "lokr_w1")),
            (None, None, Some(core)) => Err(self.missing(&core, "lokr_w1")),
            (None, None, None) => Ok(None),
        }
    }

    /// Plain weights may be called `a1` or `b2` as well, so only a group with `a1` is taken for GLoRA.
    fn glora(&mut self, alpha: Option<f64>) -> Result<Option<Delta>> {
        if !self.parts.iter().any(|(part, _)| *part == Part::GloraA1) {
            return Ok(None);
        }
        let factors = self.take_all([
            (Part::GloraA1, "a1.weight"),
            (Part::GloraA2, "a2.weight"),
            (Part::GloraB1, "b1.weight"),
            (Part::GloraB2, "b2.weight"),
        ])?;
        Ok(factors.map(|[a1, a2, b1, b2]| Delta::Glora { a: [a1, a2], b: [b1, b2], alpha }))
    }

    fn oft(&mut self, most: Option<f64>) -> Result<Option<Delta>> {
        let Some(blocks) = self.take(Part::OftBlocks) else { return Ok(None) };
        let oft = Oft::read(&blocks, most).map_err(|what| {
            let (file, name) = (self.file.to_owned(), blocks.name().to_owned());
            Error::Unsupported { file, name, what }
        })?;
        Ok(Some(Delta::Oft(oft)))
    }
}

fn block(
    whole: Option<Factor>,
    product: Option<[Factor; 2]>,
    core: Option<Factor>,
) -> Option<KroneckerFactor> {
    match (whole, product) {
        (Some(whole), _) => Some(KroneckerFactor::Whole(whole)),
        (None, Some([a, b])) => Some(KroneckerFactor::Product(Box::new(Product { a, b, core }))),
        (None, None) => None,
    }
}

fn first(block: &KroneckerFactor) -> &Factor {
    match block {
        KroneckerFactor::Whole(factor) => factor,
        KroneckerFactor::Product(product) => &product.a,
    }
}
