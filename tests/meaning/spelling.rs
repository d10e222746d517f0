//! JSON values and the many ways to write each of them.

/// A JSON value in the one form that means it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Word(&'static str),
    /// Digits without zeros around them, times a power of ten.
    Number {
        negative: bool,
        digits: String,
        exponent: i32,
    },
    Text(String),
    Items(Vec<Value>),
    /// Sorted by name, no name twice.
    Members(Vec<(String, Value)>),
}

impl Value {
    pub(crate) fn number(negative: bool, digits: &str, exponent: i32) -> Self {
        let short = digits.trim_end_matches('0');
        if short.is_empty() {
            return Self::Number { negative: false, digits: "0".to_owned(), exponent: 0 };
        }
        let exponent = exponent + i32::try_from(digits.len() - short.len()).unwrap();
        Self::Number { negative, digits: short.to_owned(), exponent }
    }

    pub(crate) fn members(mut members: Vec<(String, Self)>) -> Self {
        members.sort_by(|one, other| one.0.cmp(&other.0));
        members.dedup_by(|one, other| one.0 == other.0);
        Self::Members(members)
    }

    /// How many values there are in it, itself among them.
    pub(crate) fn size(&self) -> usize {
        1 + match self {
            Self::Items(items) => items.iter().map(Self::size).sum(),
            Self::Members(members) => members.iter().map(|(_, value)| value.size()).sum(),
            _ => 0,
        }
    }

    /// Changes one of them.
    pub(crate) fn change(&mut self, at: usize) {
        if at == 0 {
            return self.change_here();
        }
        let inner: Vec<&mut Self> = match self {
            Self::Items(items) => items.iter_mut().collect(),
            Self::Members(members) => members.iter_mut().map(|(_, value)| value).collect(),
            _ => panic!("there is nothing inside"),
        };
        let mut at = at - 1;
        for value in inner {
            match at.checked_sub(value.size()) {
                Some(rest) => at = rest,
                None => return value.change(at),
            }
        }
    }

    fn change_here(&mut self) {
        match self {
            Self::Word(word) => *word = if *word == "null" { "true" } else { "null" },
            Self::Number { digits, exponent, .. } if digits != "0" => *exponent += 1,
            Self::Number { .. } => *self = Self::number(false, "1", 0),
            Self::Text(text) => text.push('a'),
            Self::Items(items) => items.push(Self::Word("null")),
            Self::Members(members) => match members.pop() {
                Some(_) => {}
                None => members.push(("a".to_owned(), Self::Word("null"))),
            },
        }
    }
}

/// Writes `value` in one of many ways: the choices say which.
pub(crate) fn write(value: &Value, choices: &[u8]) -> String {
    let mut writer = Writer { out: String::new(), choices, at: 0 };
    writer.space();
    writer.value(value);
    writer.space();
    writer.out
}

struct Writer<'c> {
    out: String,
    choices: &'c [u8],
    at: usize,
}

impl Writer<'_> {
    fn choose(&mut self, of: usize) -> usize {
        self.at += 1;
        usize::from(self.choices[self.at % self.choices.len()]) % of
    }

    fn space(&mut self) {
        let space = ["", " ", "\n", "\t\r\n", ""][self.choose(5)];
        self.out.push_str(space);
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Word(word) => self.out.push_str(word),
            Value::Number { negative, digits, exponent } => {
                self.number(*negative, digits, *exponent);
            }
            Value::Text(text) => self.text(text),
            Value::Items(items) => {
                self.out.push('[');
                self.space();
                for (place, item) in items.iter().enumerate() {
                    self.comma(place);
                    self.value(item);
                    self.space();
                }
                self.out.push(']');
            }
            Value::Members(members) => {
                let mut members: Vec<_> = members.iter().collect();
                if !members.is_empty() {
                    let by = self.choose(members.len());
                    members.rotate_left(by);
                }
                self.out.push('{');
                self.space();
                for (place, (name, value)) in members.into_iter().enumerate() {
                    self.comma(place);
                    self.text(name);
                    self.space();
                    self.out.push(':');
                    self.space();
                    self.value(value);
                    self.space();
                }
                self.out.push('}');
            }
        }
    }

    fn comma(&mut self, place: usize) {
        if place > 0 {
            self.out.push(',');
            self.space();
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' | '\\' if self.choose(2) == 0 => {
                    self.out.push('\\');
                    self.out.push(character);
                }
                '\n' if self.choose(2) == 0 => self.out.push_str("\\n"),
                '"' | '\\' | '\n' => self.escape(character),
                _ if self.choose(3) == 0 => self.escape(character),
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, character: char) {
        for unit in character.encode_utf16(&mut [0; 2]) {
            self.out.push_str(&format!("\\u{unit:04x}"));
        }
    }

    /// With zeros behind, with a point anywhere, and the exponent that makes up for it.
    fn number(&mut self, negative: bool, digits: &str, exponent: i32) {
        if negative {
            self.out.push('-');
        }
        let zeros = self.choose(4);
        let digits = format!("{digits}{}", "0".repeat(zeros));
        let point = self.choose(digits.len() + 1);
        let behind = i32::try_from(digits.len() - point).unwrap();
        let exponent = exponent - i32::try_from(zeros).unwrap() + behind;
        let (before, after) = digits.split_at(point);
        // A whole part has no zeros in front but the one that stands alone.
        let (before, after) = match before.len() > 1 && before.starts_with('0') {
            true => ("0", "0"),
            false => (before, after),
        };
        self.out.push_str(if before.is_empty() { "0" } else { before });
        if !after.is_empty() {
            self.out.push('.');
            self.out.push_str(after);
        }
        if exponent != 0 || self.choose(2) == 0 {
            let sign = if exponent >= 0 && self.choose(2) == 0 { "+" } else { "" };
            let e = ["e", "E"][self.choose(2)];
            self.out.push_str(&format!("{e}{sign}{exponent}"));
        }
    }
}
