//! An identity in an element of an XML body, found without decoding the rest of it as text.

use std::borrow::Cow;

use bytes::Bytes;
use quick_xml::{
    Reader,
    events::{BytesDecl, BytesRef, Event},
};

use super::{Identity, Input, Source, encoding, excerpt};
use crate::refusal::Refusal;

/// How deep elements may stand in each other.
const DEPTH_AT_MOST: usize = 64;

/// An identity in an element of an XML body. Made by [`xml`].
#[derive(Clone, Debug)]
pub struct Xml {
    path: String,
}

/// The identity in the element of an XML body at this path from its root, as WeChat Pay v2 sends it:
/// `/xml/out_trade_no`. Its text, CDATA and references (`&amp;`, `&#65;`) joined, with the whitespace
/// around them.
///
/// Names are compared as they are written, with their prefix; attributes are not looked at. An
/// element that is not there is an absent identity. Refused are: an element that is there twice, or
/// has others inside; a document type declaration, and so every entity of one's own; elements more than
/// 64 deep; a body that is no XML.
///
/// Only what is looked for is decoded: bodies in GBK, Big5, Shift JIS and other charsets that extend
/// ASCII are read as those in UTF-8 are, and the identity is the element's bytes. UTF-16 and other
/// charsets that do not are refused. The body is read as XML whatever its `Content-Type` says.
///
/// # Panics
///
/// When `path` does not begin with `/`, or has an empty name in it.
///
/// # Example: a notification
///
/// ```
/// use bytes::Bytes;
/// use tower_idempotency::{Identity, Input, Source, xml};
///
/// let body = Bytes::from("<xml><out_trade_no><![CDATA[T-1]]></out_trade_no></xml>");
/// let (head, body) = http::Request::new(body).into_parts();
/// let found = xml("/xml/out_trade_no").read(&Input::new(&head, &body)).unwrap();
/// assert_eq!(found, Some(Identity::new("T-1")));
/// ```
#[track_caller]
pub fn xml(path: impl Into<String>) -> Xml {
    let path = path.into();
    match Xml::parse(&path) {
        Ok(xml) => xml,
        Err(mend) => panic!("xml({path:?}): {mend}"),
    }
}

impl Source for Xml {
    fn read(&self, from: &Input<'_>) -> Result<Option<Identity>, Refusal> {
        Ok(self.find(from)?.map(Identity::new))
    }

    fn describe(&self) -> String {
        format!("XML element {}", self.path)
    }
}

impl Xml {
    /// The element at this path, or how a path is written.
    pub(crate) fn parse(path: &str) -> Result<Self, String> {
        let names = path.strip_prefix('/').unwrap_or_default();
        if names.split('/').any(str::is_empty) {
            return Err("give the path of an element from the root, such as \"/xml/out_trade_no\""
                .to_owned());
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The bytes in the element.
    pub(crate) fn find(&self, from: &Input<'_>) -> Result<Option<Bytes>, Refusal> {
        let path: Vec<&str> = self.path.split('/').skip(1).collect();
        let (text, is_utf8) = as_text(from.body());
        let mut search = Search::new(&path, is_utf8);
        search.run(&text).map_err(|wrong| match wrong {
            Wrong::Element(wrong) => Refusal::identity_malformed(format!(
                "in the XML body, {wrong}; {} must be one element with text alone",
                self.path
            )),
            Wrong::Document(wrong) => Refusal::identity_malformed(match encoding(from) {
                None => format!(
                    "the body cannot be read as XML ({wrong}); send a document with {} in it",
                    self.path
                ),
                Some(coding) => format!(
                    "{coding} and cannot be read as XML ({wrong}); send it plain, or let the \
                     server decompress it in a layer outside this one"
                ),
            }),
        })?;
        Ok(search.found.map(Bytes::from))
    }
}

/// The body as text for the parser. Where it is not UTF-8 each byte becomes the character with its
/// number: markup is ASCII, and the bytes of what is found can be told from it.
fn as_text(body: &[u8]) -> (Cow<'_, str>, bool) {
    match std::str::from_utf8(body) {
        Ok(text) => (text.into(), true),
        Err(_) => (body.iter().copied().map(char::from).collect::<String>().into(), false),
    }
}

enum Wrong {
    /// About what is looked for.
    Element(String),
    /// About the document.
    Document(String),
}

fn document(wrong: impl Into<String>) -> Wrong {
    Wrong::Document(wrong.into())
}

/// One walk through a document.
struct Search<'p> {
    path: &'p [&'p str],
    is_utf8: bool,
    /// Elements that are open.
    depth: usize,
    /// How many of those are the path's, from the root on.
    matched: usize,
    /// How much of the path was met so far, in elements that may be closed again.
    met: usize,
    root_seen: bool,
    says_utf8: bool,
    found: Option<Vec<u8>>,
}

impl<'p> Search<'p> {
    fn new(path: &'p [&'p str], is_utf8: bool) -> Self {
        Self {
            path,
            is_utf8,
            depth: 0,
            matched: 0,
            met: 0,
            root_seen: false,
            says_utf8: true,
            found: None,
        }
    }

    fn run(&mut self, text: &str) -> Result<(), Wrong> {
        if text.contains('\0') {
            return Err(document("it has a zero byte in it, as UTF-16 has"));
        }
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        loop {
            let event = reader.read_event().map_err(|error| {
                document(format!("{} at byte {}", plain(&error), reader.error_position()))
            })?;
            match event {
                Event::Start(start) => self.open(start.name().as_ref())?,
                Event::End(_) => self.close(),
                Event::Text(text) => self.text(&text.into_inner())?,
                Event::CData(text) => self.text(&text.into_inner())?,
                Event::GeneralRef(reference) => self.reference(&reference)?,
                Event::Decl(declaration) => self.declaration(&declaration)?,
                Event::DocType(_) => {
                    return Err(document("it has a document type declaration, which is not read"));
                }
                Event::Comment(_) | Event::PI(_) | Event::Empty(_) => {}
                Event::Eof => break,
            }
        }
        match (self.root_seen, self.depth) {
            (true, 0) => Ok(()),
            (false, _) => Err(document("it has no element")),
            (true, _) => Err(document("it ends within an element")),
        }
    }

    fn is_inside(&self) -> bool {
        self.matched == self.path.len()
    }

    fn open(&mut self, name: &str) -> Result<(), Wrong> {
        if self.depth == 0 && self.root_seen {
            return Err(document("it has two roots"));
        }
        if self.depth == DEPTH_AT_MOST {
            return Err(document(format!("it is more than {DEPTH_AT_MOST} elements deep")));
        }
        if self.is_inside() {
            return Err(Wrong::Element(format!("{} has elements inside", self.to(self.matched))));
        }
        self.root_seen = true;
        if self.depth == self.matched && self.path[self.matched] == name {
            let next = self.matched + 1;
            if self.met >= next {
                return Err(Wrong::Element(format!("{} is there twice", self.to(next))));
            }
            self.matched = next;
            self.met = next;
            if self.is_inside() {
                self.found = Some(Vec::new());
            }
        }
        self.depth += 1;
        Ok(())
    }

    fn close(&mut self) {
        // The parser has made sure that it was opened.
        if self.depth == self.matched {
            self.matched -= 1;
        }
        self.depth -= 1;
    }

    fn text(&mut self, text: &str) -> Result<(), Wrong> {
        let is_utf8 = self.is_utf8;
        if self.depth == 0 {
            let blank = text.bytes().all(|byte| matches!(byte, b' ' | b'\t' | b'\r' | b'\n'));
            return if blank { Ok(()) } else { Err(document("it has text outside its root")) };
        }
        if let (true, Some(found)) = (self.is_inside(), &mut self.found) {
            if is_utf8 {
                found.extend_from_slice(text.as_bytes());
            } else {
                // Each character was a byte.
                found.extend(text.chars().map(|character| character as u8));
            }
        }
        Ok(())
    }

    fn reference(&mut self, reference: &BytesRef<'_>) -> Result<(), Wrong> {
        if self.depth == 0 {
            return Err(document("it has text outside its root"));
        }
        if !self.is_inside() {
            return Ok(());
        }
        let character = match &*reference.borrow().into_inner() {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => reference.resolve_char_ref().ok().flatten(),
        };
        let Some(character) = character else {
            let name = excerpt(reference.borrow().into_inner().as_bytes());
            return Err(Wrong::Element(format!("{name} is a reference to nothing known")));
        };
        if !character.is_ascii() && (!self.is_utf8 || !self.says_utf8) {
            // In another charset it has other bytes, which would be another identity.
            return Err(Wrong::Element("a reference is to no ASCII character".to_owned()));
        }
        if let Some(found) = &mut self.found {
            found.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
        Ok(())
    }

    fn declaration(&mut self, declaration: &BytesDecl<'_>) -> Result<(), Wrong> {
        if self.root_seen {
            return Err(document("its declaration does not come first"));
        }
        let Some(charset) = declaration.encoding() else { return Ok(()) };
        let charset = charset.map_err(|_| document("its declaration is malformed"))?;
        let charset = charset.to_ascii_lowercase();
        self.says_utf8 = matches!(&*charset, "utf-8" | "utf8");
        if extends_ascii(&charset) {
            Ok(())
        } else {
            Err(document(format!("charset {} is not read", excerpt(charset.as_bytes()))))
        }
    }

    /// The first so many steps of the path, for messages.
    fn to(&self, depth: usize) -> String {
        self.path[..depth].iter().flat_map(|name| ["/", name]).collect()
    }
}

/// Charsets in which a byte of ASCII that XML needs is never a part of another character.
fn extends_ascii(charset: &str) -> bool {
    const NAMED: [&str; 13] = [
        "utf-8",
        "utf8",
        "us-ascii",
        "ascii",
        "gbk",
        "gb2312",
        "gb18030",
        "big5",
        "shift_jis",
        "euc-jp",
        "euc-kr",
        "koi8-r",
        "koi8-u",
    ];
    const FAMILIES: [&str; 2] = ["iso-8859-", "windows-125"];
    NAMED.contains(&charset) || FAMILIES.iter().any(|family| charset.starts_with(family))
}

/// An error of the parser without what it quotes of the body.
fn plain(error: &quick_xml::Error) -> &'static str {
    match error {
        quick_xml::Error::Syntax(_) => "its syntax is broken",
        quick_xml::Error::IllFormed(_) => "its elements do not fit each other",
        _ => "it is no XML",
    }
}
