//! The machine that a pickle is a program for, without its calls.

use std::ops::Range;

use super::PickleFault;
use super::globals::{self, Global};
use super::nodes::{Node, Nodes, Slot, Storage, Tensor};

type Result<T, E = PickleFault> = std::result::Result<T, E>;

/// Reads pickles that stand one after the other.
pub(super) struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    nodes: Nodes<'a>,
    stack: Vec<Slot>,
    marks: Vec<usize>,
    memo: Vec<Slot>,
}

impl<'a> Machine<'a> {
    /// A machine for the pickles in `bytes`, which 32 bits count.
    pub(super) fn new(bytes: &'a [u8]) -> Machine<'a> {
        let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
        Machine { bytes, at: 0, nodes: Nodes::new(bytes), stack, marks, memo }
    }

    /// What was made so far.
    pub(super) fn nodes(&self) -> &Nodes<'a> {
        &self.nodes
    }

    /// The byte behind the last pickle.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Passes over bytes that are no pickle.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Reads one pickle and says what it made.
    pub(super) fn run(&mut self) -> Result<Slot> {
        self.stack.clear();
        self.marks.clear();
        self.memo.clear();
        loop {
            let code = self.byte()?;
            if code == b'.' {
                return self.pop();
            }
            self.step(code)?;
        }
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            // The protocol and the length of a frame say nothing that is needed.
            0x80 => self.take(1).map(|_| ()),
            0x95 => self.take(8).map(|_| ()),
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => self.pop().map(|_| ()),
            b'1' => self.marked().map(|_| ()),
            b'2' => {
                let top = self.top()?;
                self.push(top)
            }
            b'q' | b'r' | 0x94 | b'h' | b'j' => self.remember(code),
            b'N' | 0x88 | 0x89 | b'K' | b'M' | b'J' | 0x8a | 0x8b | b'G' => self.number(code),
            b'X' | 0x8c | 0x8d | b'U' | b'T' | b'C' | b'B' | 0x8e => self.text(code),
            b')' | b't' | 0x85 | 0x86 | 0x87 | b']' | b'l' | b'}' | b'd' => self.container(code),
            b'a' | b'e' | b's' | b'u' => self.fill(code),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                match (self.nodes.get(module), self.nodes.get(name)) {
                    (Some(Node::Text(module)), Some(Node::Text(name))) => {
                        let (module, name) = (module.clone(), name.clone());
                        self.global(module, name)
                    }
                    _ => Err(self.broken()),
                }
            }
            b'Q' => self.storage(),
            b'R' | 0x81 => self.call(),
            b'b' => self.build(),
            code => Err(PickleFault::Instruction { code, at: self.at as u64 - 1 }),
        }
    }

    fn remember(&mut self, code: u8) -> Result<()> {
        let at = match code {
            b'q' | b'h' => usize::from(self.byte()?),
            b'r' | b'j' => self.length(4)?,
            _ => self.memo.len(),
        };
        if matches!(code, b'h' | b'j') {
            let known = self.memo.get(at).copied().ok_or_else(|| self.broken())?;
            return self.push(known);
        }
        let top = self.top()?;
        // Numbers come in order, with gaps where values were dropped; a gap that no pickle explains is damage.
        if at > self.bytes.len() {
            return Err(self.broken());
        }
        if at >= self.memo.len() {
            self.memo.resize(at + 1, Slot::None);
        }
        self.memo[at] = top;
        Ok(())
    }

    fn number(&mut self, code: u8) -> Result<()> {
        let slot = match code {
            b'N' => Slot::None,
            0x88 => Slot::Bool(true),
            0x89 => Slot::Bool(false),
            b'K' => Slot::Int(i32::from(self.byte()?)),
            b'M' => Slot::Int(self.length(2)? as i32),
            b'J' => Slot::Int(i32::from_le_bytes(self.array()?)),
            b'G' => {
                self.take(8)?;
                self.nodes.push(Node::Inert)
            }
            _ => {
                let len = if code == 0x8a { usize::from(self.byte()?) } else { self.length(4)? };
                let digits = self.take(len)?;
                let digits = &self.bytes[digits.start as usize..digits.end as usize];
                self.nodes.push(long(digits).map_or(Node::Inert, Node::Long))
            }
        };
        self.push(slot)
    }

    fn text(&mut self, code: u8) -> Result<()> {
        let len = match code {
            0x8c | b'U' | b'C' => usize::from(self.byte()?),
            b'X' | b'T' | b'B' => self.length(4)?,
            _ => self.length(8)?,
        };
        let place = self.take(len)?;
        let text = self.nodes.push(Node::Text(place));
        self.push(text)
    }

    fn container(&mut self, code: u8) -> Result<()> {
        let node = match code {
            b')' => Node::Tuple(Box::new([])),
            b't' => Node::Tuple(self.marked()?.into()),
            0x85..=0x87 => {
                let count = usize::from(code - 0x84);
                let from = self.stack.len().checked_sub(count).ok_or_else(|| self.broken())?;
                Node::Tuple(self.stack.split_off(from).into())
            }
            b']' => Node::List(Vec::new()),
            b'l' => Node::List(self.marked()?),
            b'}' => Node::Dict(Vec::new()),
            _ => {
                let items = self.marked()?;
                Node::Dict(self.pairs(&items)?)
            }
        };
        let made = self.nodes.push(node);
        self.push(made)
    }

    fn fill(&mut self, code: u8) -> Result<()> {
        let items = match code {
            b'a' => vec![self.pop()?],
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                vec![key, value]
            }
            _ => self.marked()?,
        };
        let target = self.top()?;
        let in_pairs = matches!(code, b's' | b'u');
        let pairs = if in_pairs { self.pairs(&items)? } else { Vec::new() };
        match (self.nodes.get_mut(target), in_pairs) {
            (Some(Node::List(list)), false) => list.extend(items),
            (Some(Node::Dict(dict)), true) => dict.extend(pairs),
            (Some(Node::Inert), _) => {}
            _ => return Err(self.broken()),
        }
        Ok(())
    }

    fn global(&mut self, module: Range<u32>, name: Range<u32>) -> Result<()> {
        let known = match (self.nodes.text_at(&module), self.nodes.text_at(&name)) {
            (Some(module), Some(name)) => globals::find(module, name),
            _ => None,
        };
        let node = known.map_or_else(|| Node::Unknown(Box::new([module, name])), Node::Global);
        let made = self.nodes.push(node);
        self.push(made)
    }

    /// `("storage", type, name, place, count, …)`: bytes that lie outside of the pickle.
    fn storage(&mut self) -> Result<()> {
        let wrong = || PickleFault::Arguments { of: "a storage" };
        let about = self.pop()?;
        let items: Vec<Slot> = self.nodes.items(about).ok_or_else(wrong)?.iter().take(6).copied().collect();
        let [word, class, key, _, _, rest @ ..] = items.as_slice() else { return Err(wrong()) };
        // A storage within another one was possible before archives, and hardly ever happened.
        let is_whole = rest.first().is_none_or(|view| *view == Slot::None);
        if self.nodes.text(*word) != Some("storage") || !is_whole {
            return Err(wrong());
        }
        let dtype = match self.nodes.get(*class) {
            Some(Node::Global(Global::Storage(dtype))) => Some(*dtype),
            Some(Node::Global(Global::UntypedStorage)) => None,
            Some(Node::Unknown(name)) => return Err(self.calls(name)),
            _ => return Err(wrong()),
        };
        let Some(Node::Text(key)) = self.nodes.get(*key) else { return Err(wrong()) };
        let storage = Storage { dtype, key: key.clone() };
        let made = self.nodes.push(Node::Storage(Box::new(storage)));
        self.push(made)
    }

    /// A call or a new object, if it is one of those that describe tensors.
    fn call(&mut self) -> Result<()> {
        let (args, callee) = (self.pop()?, self.pop()?);
        let args: Vec<Slot> = match self.nodes.get(args) {
            Some(Node::Tuple(args)) => args.iter().take(8).copied().collect(),
            _ => return Err(self.broken()),
        };
        let made = match self.nodes.get(callee) {
            Some(Node::Global(global)) => self.made(*global, &args)?,
            Some(Node::Unknown(name)) => return Err(self.calls(name)),
            _ => return Err(self.broken()),
        };
        self.push(made)
    }

    fn made(&mut self, global: Global, args: &[Slot]) -> Result<Slot> {
        let node = match global {
            Global::RebuildTensor => self.tensor(args, None)?,
            Global::RebuildTensorOfType => {
                let dtype = args.get(6).and_then(|dtype| self.nodes.get(*dtype));
                let Some(Node::Global(Global::Type(dtype))) = dtype else {
                    return Err(PickleFault::Arguments { of: "a tensor" });
                };
                self.tensor(args, Some(*dtype))?
            }
            Global::RebuildParameter | Global::Size => {
                return args.first().copied().ok_or(PickleFault::Arguments { of: "a parameter" });
            }
            Global::Dict | Global::ParameterDict => Node::Dict(self.pairs_of(args)?),
            Global::Reconstructor => match args.first().and_then(|class| self.nodes.get(*class)) {
                Some(Node::Global(class)) => return self.made(*class, &[]),
                Some(Node::Unknown(name)) => return Err(self.calls(name)),
                _ => return Err(PickleFault::Arguments { of: "an object" }),
            },
            Global::Inert | Global::Type(_) => Node::Inert,
            Global::Storage(_) | Global::UntypedStorage => {
                return Err(PickleFault::Arguments { of: "a storage" });
            }
        };
        Ok(self.nodes.push(node))
    }

    /// The pairs that a dictionary is made of: none, or a list of lists of two.
    fn pairs_of(&self, args: &[Slot]) -> Result<Vec<(Slot, Slot)>> {
        let Some(items) = args.first().and_then(|list| self.nodes.items(*list)) else {
            return Ok(Vec::new());
        };
        let pair = |item: &Slot| match self.nodes.items(*item) {
            Some([key, value]) => Ok((*key, *value)),
            _ => Err(PickleFault::Arguments { of: "a dictionary" }),
        };
        items.iter().map(pair).collect()
    }

    fn tensor(&self, args: &[Slot], dtype: Option<meta::DType>) -> Result<Node> {
        let wrong = || PickleFault::Arguments { of: "a tensor" };
        let [storage, offset, size, stride, ..] = args else { return Err(wrong()) };
        let Some(Node::Storage(storage)) = self.nodes.get(*storage) else { return Err(wrong()) };
        let numbers = |slot: Slot| -> Result<Box<[u64]>> {
            let items = self.nodes.items(slot).ok_or_else(wrong)?;
            items.iter().take(64).map(|item| self.nodes.number(*item).ok_or_else(wrong)).collect()
        };
        Ok(Node::Tensor(Box::new(Tensor {
            storage: (**storage).clone(),
            dtype: dtype.or(storage.dtype),
            offset: self.nodes.number(*offset).ok_or_else(wrong)?,
            size: numbers(*size)?,
            stride: numbers(*stride)?,
        })))
    }

    /// The state of an object. What tensors need of it are the parameters of a dictionary of them.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        let parameters = self.nodes.value(state, "_parameters");
        let parameters = parameters.and_then(|parameters| self.nodes.pairs(parameters)).map(<[_]>::to_vec);
        match (self.nodes.get_mut(target), parameters) {
            (Some(Node::Dict(dict)), Some(pairs)) => dict.extend(pairs),
            (Some(Node::Dict(_) | Node::Inert | Node::Tensor(_)), _) => {}
            _ => return Err(self.broken()),
        }
        Ok(())
    }

    fn pairs(&self, items: &[Slot]) -> Result<Vec<(Slot, Slot)>> {
        let (pairs, rest) = items.as_chunks::<2>();
        if rest.is_empty() {
            return Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect());
        }
        Err(self.broken())
    }

    fn calls(&self, name: &[Range<u32>; 2]) -> PickleFault {
        let text = |place: &Range<u32>| self.nodes.text_at(place).unwrap_or("?");
        let name = format!("{}.{}", text(&name[0]), text(&name[1]));
        PickleFault::Calls { name: crate::error::excerpt(&name) }
    }

    /// What was pushed since the last mark.
    fn marked(&mut self) -> Result<Vec<Slot>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        let mark = mark.ok_or_else(|| self.broken())?;
        Ok(self.stack.split_off(mark))
    }

    fn push(&mut self, slot: Slot) -> Result<()> {
        self.stack.push(slot);
        Ok(())
    }

    fn pop(&mut self) -> Result<Slot> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// The last value, which does not lie under a mark.
    fn top(&self) -> Result<Slot> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.last().filter(|_| self.stack.len() > floor);
        top.copied().ok_or_else(|| self.broken())
    }

    fn byte(&mut self) -> Result<u8> {
        let place = self.take(1)?;
        Ok(self.bytes[place.start as usize])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let place = self.take(N)?;
        let bytes = &self.bytes[place.start as usize..place.end as usize];
        bytes.try_into().map_err(|_| self.broken())
    }

    /// An unsigned number of so many bytes.
    fn length(&mut self, bytes: usize) -> Result<usize> {
        let place = self.take(bytes)?;
        let bytes = &self.bytes[place.start as usize..place.end as usize];
        let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        usize::try_from(value).map_err(|_| self.broken())
    }

    /// The place of a text that ends with its line.
    fn line(&mut self) -> Result<Range<u32>> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or_else(|| self.broken())?;
        let place = self.take(len)?;
        self.take(1)?;
        Ok(place)
    }

    fn take(&mut self, len: usize) -> Result<Range<u32>> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| self.broken())?;
        let start = std::mem::replace(&mut self.at, end);
        // Pickles are cut at a limit that 32 bits count.
        Ok(start as u32..end as u32)
    }

    fn broken(&self) -> PickleFault {
        PickleFault::Broken { at: self.at as u64 }
    }
}

/// A number of as many bytes as it needs, if eight are enough.
fn long(digits: &[u8]) -> Option<i64> {
    let last = *digits.last().unwrap_or(&0);
    let mut bytes = if last & 0x80 == 0 { [0; 8] } else { [0xff; 8] };
    bytes.get_mut(..digits.len())?.copy_from_slice(digits);
    Some(i64::from_le_bytes(bytes))
}
