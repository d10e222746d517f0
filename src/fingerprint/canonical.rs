//! What a JSON value means, as bytes: equal meanings are equal bytes, and others are not.

use std::{borrow::Cow, ops::Range};

/// How deep arrays and objects may stand in each other.
pub(crate) const DEPTH_AT_MOST: usize = 64;
/// The most digits of an exponent that is read: a number with more has no meaning to anybody.
const EXPONENT_DIGITS_AT_MOST: usize = 18;

/// The meaning of `text`, which serde_json has found to be one JSON value, without what stands at
/// these pointers.
///
/// Members are sorted by name; numbers are their digits and an exponent, so that `10`, `1e1` and
/// `10.0` are one, however many digits they have; strings have their escapes undone and are written in
/// one way. An ignored member is as if it were not there, an ignored item of an array keeps its place.
///
/// # Errors
///
/// What cannot be compared, for a message: a member that is there twice, a value nested too deep, an
/// escape that is no character, an exponent without bounds.
pub(crate) fn canonical(text: &str, without: &[&[String]]) -> Result<Vec<u8>, Cow<'static, str>> {
    let mut writer = Writer { text, at: 0, out: Vec::with_capacity(text.len()) };
    writer.value(without, 0)?;
    Ok(writer.out)
}

type Written = Result<(), Cow<'static, str>>;

struct Writer<'t> {
    text: &'t str,
    at: usize,
    out: Vec<u8>,
}

impl<'t> Writer<'t> {
    fn value(&mut self, without: &[&[String]], depth: usize) -> Written {
        match self.peek() {
            b'{' | b'[' if depth == DEPTH_AT_MOST => {
                Err(format!("it is more than {DEPTH_AT_MOST} arrays and objects deep").into())
            }
            b'{' => self.object(without, depth),
            b'[' => self.array(without, depth),
            b'"' => {
                let text = self.string()?;
                put_string(&mut self.out, &text);
                Ok(())
            }
            b't' | b'f' | b'n' => {
                let word = self.while_in(|byte| byte.is_ascii_lowercase());
                self.out.extend_from_slice(word.as_bytes());
                Ok(())
            }
            _ => {
                let number = self.while_in(|byte| {
                    byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')
                });
                put_number(&mut self.out, number)
            }
        }
    }

    fn object(&mut self, without: &[&[String]], depth: usize) -> Written {
        let start = self.out.len();
        let mut members: Vec<(Cow<'t, str>, Range<usize>)> = Vec::new();
        self.at += 1;
        while self.peek() != b'}' {
            self.skip_if(b',');
            self.peek();
            let name = self.string()?;
            self.skip_if(b':');
            let inside = below(without, &name);
            if inside.iter().any(|rest| rest.is_empty()) {
                self.skip_value();
                continue;
            }
            let from = self.out.len();
            self.value(&inside, depth + 1)?;
            members.push((name, from..self.out.len()));
        }
        self.at += 1;
        members.sort_by(|one, other| one.0.cmp(&other.0));
        if let Some(pair) = members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(format!("the member {} is there twice", shown(&pair[0].0)).into());
        }
        let values = self.out.split_off(start);
        self.out.push(b'{');
        for (place, (name, range)) in members.into_iter().enumerate() {
            if place > 0 {
                self.out.push(b',');
            }
            put_string(&mut self.out, &name);
            self.out.push(b':');
            self.out.extend_from_slice(&values[range.start - start..range.end - start]);
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, without: &[&[String]], depth: usize) -> Written {
        self.out.push(b'[');
        self.at += 1;
        let mut place = 0_usize;
        while self.peek() != b']' {
            self.skip_if(b',');
            if place > 0 {
                self.out.push(b',');
            }
            let inside =
                if without.is_empty() { Vec::new() } else { below(without, &place.to_string()) };
            if inside.iter().any(|rest| rest.is_empty()) {
                self.skip_value();
                self.out.push(b'-');
            } else {
                self.value(&inside, depth + 1)?;
            }
            place += 1;
        }
        self.at += 1;
        self.out.push(b']');
        Ok(())
    }

    /// The next byte that is no whitespace; zero, which no JSON has, at the end.
    fn peek(&mut self) -> u8 {
        self.while_in(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
        self.text.as_bytes().get(self.at).copied().unwrap_or_default()
    }

    fn skip_if(&mut self, byte: u8) {
        if self.peek() == byte {
            self.at += 1;
        }
    }

    /// Goes on while the bytes are such, which must be ASCII, and returns them.
    fn while_in(&mut self, is_such: impl Fn(u8) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| !is_such(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// The string that begins here, with its escapes undone.
    fn string(&mut self) -> Result<Cow<'t, str>, Cow<'static, str>> {
        let from = self.at;
        self.skip_string();
        let quoted = &self.text[from..self.at];
        if !quoted.contains('\\') {
            return Ok(quoted[1..quoted.len() - 1].into());
        }
        serde_json::from_str::<String>(quoted)
            .map(Cow::Owned)
            .map_err(|_| "a string has an escape that is no character".into())
    }

    fn skip_string(&mut self) {
        self.at += 1;
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            self.at += match byte {
                b'\\' => 2,
                _ => 1,
            };
            if *byte == b'"' {
                break;
            }
        }
    }

    /// Without recursion, however deep it is.
    fn skip_value(&mut self) {
        let mut open = 0_usize;
        loop {
            match self.peek() {
                0 => return,
                b'"' => self.skip_string(),
                b'{' | b'[' => {
                    open += 1;
                    self.at += 1;
                    continue;
                }
                b'}' | b']' => {
                    open -= 1;
                    self.at += 1;
                }
                b',' | b':' => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.while_in(|byte| {
                        byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')
                    });
                }
            }
            if open == 0 {
                return;
            }
        }
    }
}

/// What of the pointers is left inside the member or item with this name.
fn below<'p>(without: &[&'p [String]], name: &str) -> Vec<&'p [String]> {
    let inside = |pointer: &&'p [String]| match pointer.split_first() {
        Some((first, rest)) if first == name => Some(rest),
        _ => None,
    };
    without.iter().filter_map(inside).collect()
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a string can be written to memory");
}

/// Writes digits without zeros around them and an exponent: `-12e-1` for `-1.20`, `0` for every zero.
fn put_number(out: &mut Vec<u8>, number: &str) -> Written {
    let (negative, unsigned) = match number.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, number),
    };
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = || integer.bytes().chain(fraction.bytes());
    let leading = digits().take_while(|digit| *digit == b'0').count();
    let all = integer.len() + fraction.len();
    if leading == all {
        out.push(b'0');
        return Ok(());
    }
    let trailing = digits().rev().take_while(|digit| *digit == b'0').count();
    let Some(exponent) = read_exponent(exponent) else {
        return Err("a number has an exponent without bounds".into());
    };
    // A body has far fewer digits than an i64 can count, and the exponent has at most 18.
    let exponent = exponent - fraction.len() as i64 + trailing as i64;
    if negative {
        out.push(b'-');
    }
    out.extend(digits().skip(leading).take(all - leading - trailing));
    out.push(b'e');
    out.extend_from_slice(exponent.to_string().as_bytes());
    Ok(())
}

fn read_exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = digits.trim_start_matches('0');
    if digits.len() > EXPONENT_DIGITS_AT_MOST {
        return None;
    }
    let exponent: i64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some(if negative { -exponent } else { exponent })
}

/// A name for messages: short, and what can be read of it.
fn shown(name: &str) -> String {
    let beginning: String = name.chars().take(40).collect();
    format!("`{}`", beginning.escape_default())
}
