//! Which slot of a cluster a key is in.

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: of what stands between its first braces, if there is anything between them, else
/// of all of it.
pub(super) fn slot(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &name[open + 1..];
        let length = rest.iter().position(|byte| *byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    crc16(tag.unwrap_or(name)) % SLOTS
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
    }
}
