//! Which nodes of a prompt need each other: Tarjan's components, walked without recursion.

use crate::prompt::{Prompt, link_of};

/// The nodes of cycles, each with the cycle it is part of.
pub(super) struct Cycles {
    /// By node: which component of `members`, if it is in a cycle.
    component: Vec<Option<usize>>,
    members: Vec<Vec<usize>>,
}

struct Frame {
    node: usize,
    next: usize,
}

struct Walk<'a> {
    links: &'a [Vec<usize>],
    /// The order of arrival, from 1; 0 is not there yet.
    arrival: Vec<usize>,
    /// The earliest arrival that can be reached among open nodes.
    lowest: Vec<usize>,
    is_open: Vec<bool>,
    open: Vec<usize>,
    arrived: usize,
}

impl Cycles {
    pub(super) fn find(prompt: &Prompt) -> Cycles {
        let links: Vec<Vec<usize>> = prompt
            .nodes
            .values()
            .map(|node| {
                let inputs = node.inputs.iter().flat_map(|inputs| inputs.values());
                inputs.filter_map(|value| prompt.nodes.get_index_of(&*link_of(value)?.node)).collect()
            })
            .collect();
        let count = links.len();
        let mut cycles = Cycles { component: vec![None; count], members: Vec::new() };
        let mut walk = Walk {
            links: &links,
            arrival: vec![0; count],
            lowest: vec![0; count],
            is_open: vec![false; count],
            open: Vec::new(),
            arrived: 0,
        };
        for root in 0..count {
            if walk.arrival[root] == 0 {
                walk.from(root, &mut cycles);
            }
        }
        cycles
    }

    /// The nodes that a node is in a cycle with, itself among them.
    pub(super) fn of(&self, node: usize) -> Option<&[usize]> {
        self.component[node].map(|component| self.members[component].as_slice())
    }

    fn close(&mut self, mut members: Vec<usize>, links: &[Vec<usize>]) {
        let is_cycle = match members.as_slice() {
            [only] => links[*only].contains(only),
            _ => true,
        };
        if is_cycle {
            members.sort_unstable();
            for &member in &members {
                self.component[member] = Some(self.members.len());
            }
            self.members.push(members);
        }
    }
}

impl Walk<'_> {
    fn from(&mut self, root: usize, cycles: &mut Cycles) {
        let mut stack = vec![self.arrive(root)];
        while let Some(frame) = stack.last_mut() {
            let node = frame.node;
            if let Some(&source) = self.links[node].get(frame.next) {
                frame.next += 1;
                if self.arrival[source] == 0 {
                    let frame = self.arrive(source);
                    stack.push(frame);
                } else if self.is_open[source] {
                    self.lowest[node] = self.lowest[node].min(self.arrival[source]);
                }
                continue;
            }
            stack.pop();
            if let Some(parent) = stack.last() {
                self.lowest[parent.node] = self.lowest[parent.node].min(self.lowest[node]);
            }
            if self.lowest[node] == self.arrival[node] {
                cycles.close(self.leave(node), self.links);
            }
        }
    }

    fn arrive(&mut self, node: usize) -> Frame {
        self.arrived += 1;
        self.arrival[node] = self.arrived;
        self.lowest[node] = self.arrived;
        self.is_open[node] = true;
        self.open.push(node);
        Frame { node, next: 0 }
    }

    /// Takes the open nodes from the top down to this one: they are one component.
    fn leave(&mut self, node: usize) -> Vec<usize> {
        let mut members = Vec::new();
        while let Some(member) = self.open.pop() {
            self.is_open[member] = false;
            members.push(member);
            if member == node {
                break;
            }
        }
        members
    }
}
