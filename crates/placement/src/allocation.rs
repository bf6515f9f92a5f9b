//! What the user asked, as a value: the typed form of the allocation language.

use std::fmt;

use meta::DeviceId;

use crate::request::RemotePolicy;

/// What the user asked: how much of a model goes where.
///
/// It prints as the text that says the same, and that text parses back to an equal value.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// How much goes where.
    pub amounts: Amounts,
    /// Which blocks go where, when the text says so.
    pub order: Option<Order>,
    /// What to do with blocks that live on other accelerators, when the text says so.
    pub remote: Option<RemotePolicy>,
    /// The compute device, when the text names one (only the combined form does).
    pub compute: Option<DeviceId>,
}

impl Allocation {
    /// An allocation with these amounts and nothing else said.
    pub const fn new(amounts: Amounts) -> Allocation {
        Allocation { amounts, order: None, remote: None, compute: None }
    }

    /// Every device that it names, each once.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut named: Vec<DeviceId> = self.compute.into_iter().collect();
        match &self.amounts {
            Amounts::Automatic => {}
            Amounts::Normal { donors, .. } => named.extend(donors),
            Amounts::Bytes(entries) => named.extend(entries.iter().map(|entry| entry.device)),
            Amounts::Percent(entries) | Amounts::Fraction(entries) => {
                named.extend(entries.iter().map(|entry| entry.device));
            }
        }
        named.sort();
        named.dedup();
        named
    }
}

/// How much goes where, in one of five ways. One string has one mode, so one value has one variant.
#[derive(Clone, Debug, PartialEq)]
pub enum Amounts {
    /// The smallest offload that leaves room to work.
    Automatic,
    /// Take this much less of the compute device, ring and all, and move weights to the first donor until it is full,
    /// then to the next.
    Normal {
        /// Bytes by which weights and ring together are less than the model.
        virtual_vram_bytes: u64,
        /// Who takes them, in this order; never empty.
        donors: Vec<DeviceId>,
    },
    /// Bytes per device.
    Bytes(Vec<Entry<u64>>),
    /// Shares of the model in percent.
    Percent(Vec<Entry<f64>>),
    /// Shares of each device's total memory, 0 to 1.
    Fraction(Vec<Entry<f64>>),
}

/// One device and its amount.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<T> {
    /// Who gets it.
    pub device: DeviceId,
    /// How much.
    pub amount: Amount<T>,
}

/// How much one device gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount<T> {
    /// This much.
    Exactly(T),
    /// This much and whatever nobody else takes (`5gb*`; byte mode only).
    AtLeast(T),
    /// Whatever nobody else takes (`*`).
    Remainder,
}

impl<T: Copy> Amount<T> {
    /// The number written, if one was.
    pub fn number(self) -> Option<T> {
        match self {
            Amount::Exactly(n) | Amount::AtLeast(n) => Some(n),
            Amount::Remainder => None,
        }
    }

    /// Whether a `*` was written.
    pub fn takes_remainder(self) -> bool {
        !matches!(self, Amount::Exactly(_))
    }
}

/// Which blocks a device gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Streamed blocks are spread between resident ones, so that copies hide behind computing.
    #[default]
    Interleaved,
    /// Each device gets one run of blocks, in the order in which the devices are written.
    Contiguous,
}

impl Order {
    /// The word after `order=`.
    pub const fn name(self) -> &'static str {
        match self {
            Order::Interleaved => "interleaved",
            Order::Contiguous => "contiguous",
        }
    }
}

impl fmt::Display for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut items = match &self.amounts {
            Amounts::Automatic => vec!["auto".to_owned()],
            Amounts::Normal { .. } => Vec::new(),
            Amounts::Bytes(entries) => write_entries(entries, bytes_text),
            Amounts::Percent(entries) => write_entries(entries, |n| format!("{n}%")),
            Amounts::Fraction(entries) => write_entries(entries, |n| n.to_string()),
        };
        items.extend(self.order.map(|order| format!("order={}", order.name())));
        items.extend(self.remote.map(|remote| format!("remote={}", remote.name())));
        f.write_str(&items.join(";"))?;

        let compute = self.compute.map(|device| device.to_string()).unwrap_or_default();
        if let Amounts::Normal { virtual_vram_bytes, donors } = &self.amounts {
            let gigabytes = *virtual_vram_bytes as f64 / (1u64 << 30) as f64;
            let donors: Vec<String> = donors.iter().map(DeviceId::to_string).collect();
            write!(f, "#{compute};{gigabytes};{}", donors.join(","))
        } else if !compute.is_empty() {
            write!(f, "#{compute}")
        } else {
            Ok(())
        }
    }
}

fn write_entries<T: Copy>(entries: &[Entry<T>], number: impl Fn(T) -> String) -> Vec<String> {
    let amount = |amount: Amount<T>| match amount {
        Amount::Exactly(n) => number(n),
        Amount::AtLeast(n) => format!("{}*", number(n)),
        Amount::Remainder => "*".to_owned(),
    };
    entries.iter().map(|entry| format!("{},{}", entry.device, amount(entry.amount))).collect()
}

/// The shortest text that means exactly this many bytes, with a unit of at most four decimals.
fn bytes_text(bytes: u64) -> String {
    let units = [(1u64 << 30, "gb"), (1 << 20, "mb"), (1 << 10, "kb")];
    let texts = units.into_iter().filter(|(size, _)| bytes >= *size).filter_map(|(size, unit)| {
        let exact = |text: &String| {
            text.parse::<f64>().is_ok_and(|number| (number * size as f64).round() as u64 == bytes)
        };
        let rounded = (0..=4).map(|decimals| format!("{:.decimals$}", bytes as f64 / size as f64));
        rounded.filter(exact).map(|text| format!("{text}{unit}")).next()
    });
    // Of texts of one length the first is kept: the largest unit.
    texts.chain([format!("{bytes}b")]).min_by_key(String::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_short_and_exact() {
        for (bytes, text) in [
            (0, "0b"),
            (17, "17b"),
            (1 << 30, "1gb"),
            (5 << 29, "2.5gb"),
            ((2.3 * (1u64 << 30) as f64).round() as u64, "2.3gb"),
            (500 << 20, "500mb"),
            ((1 << 30) + 1, "1073741825b"),
            (3 << 10, "3kb"),
        ] {
            assert_eq!(bytes_text(bytes), text);
        }
    }
}
