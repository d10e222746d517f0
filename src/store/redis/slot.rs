//! Which slot of a cluster a key is in, and whose it is.

use std::collections::HashSet;

use super::origin::Place;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands between its first braces, if there is anything between them, else
/// of all of it.
pub(super) fn slot(name: &[u8]) -> u16 {
    crc16(tag(name).unwrap_or(name)) % SLOTS
}

fn tag(name: &[u8]) -> Option<&[u8]> {
    let open = name.iter().position(|byte| *byte == b'{')?;
    let rest = &name[open + 1..];
    let length = rest.iter().position(|byte| *byte == b'}')?;
    (length > 0).then(|| &rest[..length])
}

/// Whether all that begins with this prefix is in one slot.
pub(super) fn has_tag(prefix: &str) -> bool {
    tag(prefix.as_bytes()).is_some()
}

/// CRC-16 with the polynomial 0x1021, starting at 0 and reflected nowhere, as the cluster's specification
/// has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let index = (crc >> 8) ^ u16::from(*byte);
        (crc << 8) ^ TABLE[usize::from(index)]
    })
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Whose the slots are, as far as that is known.
#[derive(Default)]
pub(super) struct Slots {
    /// The primary of each slot, by its number in `nodes`; empty before anything is known.
    owners: Vec<Option<u16>>,
    nodes: Vec<Place>,
}

impl Slots {
    /// The primary of a slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Place> {
        let node = (*self.owners.get(usize::from(slot))?)?;
        self.nodes.get(usize::from(node))
    }

    /// One slot is another's now.
    pub(super) fn set(&mut self, slot: u16, to: Place) {
        let node = self.number(to);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(node);
        }
    }

    fn number(&mut self, place: Place) -> u16 {
        let known = self.nodes.iter().position(|node| *node == place);
        let number = known.unwrap_or_else(|| {
            self.nodes.push(place);
            self.nodes.len() - 1
        });
        // A cluster has a thousand nodes at most; one that names more is no cluster.
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// All slots anew; from which nodes to which others some have moved.
    pub(super) fn replace(&mut self, owners: Vec<(u16, u16, Place)>) -> HashSet<(Place, Place)> {
        let mut next = Self { owners: vec![None; usize::from(SLOTS)], nodes: Vec::new() };
        for (first, last, place) in owners {
            let node = next.number(place);
            next.owners[usize::from(first)..=usize::from(last)].fill(Some(node));
        }
        let before = std::mem::replace(self, next);
        let pairs: HashSet<_> = before.owners.iter().zip(&self.owners).collect();
        let places = pairs.into_iter().filter_map(|(from, to)| {
            let (from, to) = (usize::from((*from)?), usize::from((*to)?));
            Some((before.nodes[from].clone(), self.nodes[to].clone()))
        });
        places.filter(|(from, to)| from != to).collect()
    }

    /// The nodes that have slots, or had when all were last told.
    pub(super) fn nodes(&self) -> &[Place] {
        &self.nodes
    }

    /// How many slots have a primary.
    pub(super) fn covered(&self) -> usize {
        self.owners.iter().flatten().count()
    }

    /// The primaries in the order of their first slots.
    pub(super) fn in_order(&self) -> Vec<Place> {
        let mut places: Vec<Place> = Vec::new();
        for node in self.owners.iter().flatten() {
            let place = &self.nodes[usize::from(*node)];
            if !places.contains(place) {
                places.push(place.clone());
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_specification_is_met() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn what_stands_between_the_first_braces_counts_if_anything_does() {
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
        assert_eq!(slot(b"foo{bar"), crc16(b"foo{bar") % SLOTS);
        assert!(has_tag("{shop}:") && has_tag("a{b}c:") && !has_tag("shop{}:") && !has_tag("a{b:"));
    }

    #[test]
    fn one_slot_that_moved_is_another_nodes_and_the_rest_stays() {
        let place = |port| Place::Tcp("n".into(), port);
        let mut map = Slots::default();
        assert_eq!(map.owner(0), None);
        let moved = map.replace(vec![(0, 8191, place(1)), (8192, 16_383, place(2))]);
        assert_eq!(moved, HashSet::new());
        assert_eq!((map.owner(8191), map.owner(8192)), (Some(&place(1)), Some(&place(2))));
        map.set(8191, place(3));
        assert_eq!((map.owner(8190), map.owner(8191)), (Some(&place(1)), Some(&place(3))));
        assert_eq!(map.in_order(), [place(1), place(3), place(2)]);
        let moved = map.replace(vec![(0, 100, place(2))]);
        assert_eq!(moved, HashSet::from([(place(1), place(2))]), "what is nobody's moved nowhere");
        assert_eq!((map.owner(100), map.owner(101)), (Some(&place(2)), None));
    }
}
