//! Identities in XML bodies.

use http::{HeaderMap, HeaderValue, header::CONTENT_ENCODING};
use tower_idempotency::{Source, xml};

use crate::{Read, found, in_bounded_time, read};

fn at(path: &str, body: impl Into<Vec<u8>>) -> Read {
    read(&xml(path), HeaderMap::new(), body.into())
}

fn id(body: impl Into<Vec<u8>>) -> Read {
    at("/xml/id", body)
}

#[track_caller]
fn refused_saying(body: impl Into<Vec<u8>>, wrong: &str) {
    let detail = id(body).expect_err("not refused");
    assert!(detail.contains(wrong), "{detail}");
}

#[test]
fn text_cdata_and_references_are_joined() {
    for (element, value) in [
        ("<id>T-1</id>", "T-1"),
        ("<id><![CDATA[T-1]]></id>", "T-1"),
        ("<id>T<![CDATA[-]]>1</id>", "T-1"),
        ("<id>&#84;&#x2d;1</id>", "T-1"),
        ("<id>T<!-- no - part --><?no part?>-1</id>", "T-1"),
        ("<id kind=\"x\" >T-1</id >", "T-1"),
        ("<id>&lt;&amp;&gt;&quot;&apos;</id>", "<&>\"'"),
        ("<id><![CDATA[&lt;]]></id>", "&lt;"),
        ("<id><![CDATA[<b>]]>]]&gt;</id>", "<b>]]>"),
        ("<id> T-1\n</id>", " T-1\n"),
        ("<id>&#233;\u{e9}</id>", "\u{e9}\u{e9}"),
        ("<id></id>", ""),
        ("<id/>", ""),
    ] {
        assert_eq!(id(format!("<xml>{element}</xml>")), found(value), "{element}");
        let around = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- c -->\n<xml><a>1</a>\n{element}<b/></xml>\n"
        );
        assert_eq!(id(around), found(value), "{element}");
    }
    assert_eq!(id("\u{feff}<xml><id>T-1</id></xml>"), found("T-1"));
}

#[test]
fn an_element_elsewhere_is_another() {
    for body in [
        "<xml></xml>",
        "<xml/>",
        "<xml><ID>1</ID></xml>",
        "<xml><a><id>1</id></a></xml>",
        "<xml><xml><id>1</id></xml></xml>",
        "<id>1</id>",
        "<root><xml><id>1</id></xml></root>",
        "<xml id=\"1\"/>",
        "<x:xml><x:id>1</x:id></x:xml>",
        "<xml><![CDATA[<id>1</id>]]></xml>",
        "<xml><!-- <id>1</id> --></xml>",
    ] {
        assert_eq!(id(body), Ok(None), "{body}");
    }
    assert_eq!(at("/x:xml/x:id", "<x:xml><x:id>1</x:id></x:xml>"), found("1"));
    assert_eq!(at("/a/a/a", "<a><a><a>1</a></a></a>"), found("1"));
    assert_eq!(at("/a/b", "<a><c><b>1</b></c><b>2</b></a>"), found("2"));
    assert_eq!(at("/a", "<a>1</a>"), found("1"));
}

#[test]
fn an_element_that_is_there_twice_is_refused_even_if_both_are_alike() {
    refused_saying("<xml><id>1</id><id>1</id></xml>", "/xml/id is there twice; /xml/id must be");
    refused_saying("<xml><id/><a/><id/></xml>", "/xml/id is there twice");
    for body in ["<a><b/><b><c>1</c></b></a>", "<a><b><c>1</c></b><b/></a>"] {
        let refused = at("/a/b/c", body).unwrap_err();
        assert!(refused.contains("/a/b is there twice"), "{refused}");
    }
    assert_eq!(at("/a/b/c", "<a><x/><b><x/><c>1</c><x/></b><x/></a>"), found("1"));
}

#[test]
fn what_is_no_text_is_refused() {
    refused_saying("<xml><id>1<b/></id></xml>", "/xml/id has elements inside");
    refused_saying("<xml><id><id>1</id></id></xml>", "/xml/id has elements inside");
    refused_saying("<xml><id>&unknown;</id></xml>", "`unknown` is a reference to nothing known");
    refused_saying("<xml><id>&#xD800;</id></xml>", "a reference to nothing known");
    refused_saying("<xml><id>&#0;</id></xml>", "a reference to nothing known");
}

#[test]
fn declarations_of_types_and_entities_are_refused() {
    let laughs =
        "<!DOCTYPE xml [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;\">]><xml><id>&b;</id></xml>";
    refused_saying(laughs, "a document type declaration, which is not read");
    let file = "<!DOCTYPE xml SYSTEM \"file:///etc/passwd\"><xml><id>1</id></xml>";
    refused_saying(file, "a document type declaration");
    refused_saying("<xml><!DOCTYPE x><id>1</id></xml>", "a document type declaration");
}

#[test]
fn what_is_no_document_is_refused() {
    for (body, wrong) in [
        ("", "it has no element"),
        (" \n", "it has no element"),
        ("{\"id\": 1}", "text outside its root"),
        ("id=1", "text outside its root"),
        ("<xml><id>1</id>", "ends within an element"),
        ("<xml><id>1</xml>", "do not fit each other"),
        ("<xml><id>1</id></xml></xml>", "do not fit each other"),
        ("<xml><id>1</id></xml><xml/>", "two roots"),
        ("<xml><id>1</id></xml>tail", "text outside its root"),
        ("<xml><id>1</id></xml>&amp;", "text outside its root"),
        ("<xml><id>1</id></xml><![CDATA[x]]>", "text outside its root"),
        ("<xml><id>a & b</id></xml>", "cannot be read as XML"),
        ("<xml><id>1</id", "its syntax is broken"),
        ("<xml><!-- ", "its syntax is broken"),
        ("<xml><id><![CDATA[1", "its syntax is broken"),
        ("<xml><id>1</id></xml><?xml version=\"1.0\"?>", "does not come first"),
    ] {
        refused_saying(body, wrong);
    }
}

#[test]
fn charsets_that_extend_ascii_are_read_without_decoding_the_rest() {
    let body = |charset: &str, rest: &[u8], element: &[u8]| {
        let mut body =
            format!("<?xml version=\"1.0\" encoding=\"{charset}\"?><xml><a>").into_bytes();
        for part in [rest, b"</a><id>", element, b"</id></xml>"] {
            body.extend_from_slice(part);
        }
        id(body)
    };
    for charset in ["GBK", "gb2312", "GB18030", "Big5", "Shift_JIS", "ISO-8859-1", "windows-1252"] {
        assert_eq!(body(charset, b"\xb2\xe2\xca\xd4\xff", b"T-1"), found("T-1"), "{charset}");
    }
    // What is found is its bytes.
    assert_eq!(
        body("GBK", b"", b"\xb2\xe2<![CDATA[\xca\xd4]]>"),
        found(b"\xb2\xe2\xca\xd4".as_slice())
    );
    for charset in ["UTF-16", "utf-7", "ISO-2022-JP", "IBM037", "nonsense"] {
        let refused = body(charset, b"", b"1").unwrap_err();
        assert!(refused.contains("is not read"), "{refused}");
    }
    let utf16: Vec<u8> =
        "<xml><id>1</id></xml>".encode_utf16().flat_map(u16::to_le_bytes).collect();
    refused_saying(utf16, "a zero byte");
    // A reference names a character, and the element has bytes: only ASCII is both.
    assert_eq!(body("GBK", b"", b"&#84;\xb2\xe2"), found(b"T\xb2\xe2".as_slice()));
    assert!(body("GBK", b"", b"&#27979;").is_err());
    assert!(body("GBK", b"", b"\xb2\xe2&#27979;").is_err());
    assert_eq!(body("utf-8", b"", b"&#27979;"), found("\u{6d4b}"));
}

#[test]
fn a_body_that_is_encoded_is_refused_saying_which_layer_is_missing() {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let refused = read(&xml("/xml/id"), headers.clone(), vec![0x1f, 0x8b, 8]).unwrap_err();
    assert!(refused.contains("Content-Encoding `gzip`"), "{refused}");
    assert_eq!(read(&xml("/xml/id"), headers, "<xml><id>1</id></xml>"), found("1"));
}

#[test]
fn hostile_bodies_take_bounded_time() {
    const SIZE: usize = 10 << 20;
    in_bounded_time(|| {
        refused_saying("[".repeat(SIZE), "text outside its root");
        refused_saying("<a>".repeat(SIZE / 3), "more than 64 elements deep");
        for hostile in ["[", "<", ">", "&", "<!--", "<![CDATA[", "<?", "</a>", "<a", "<a b=\""] {
            let hostile = hostile.repeat(SIZE / 4 / hostile.len());
            assert!(id(format!("<xml>{hostile}")).is_err(), "{}", &hostile[..9]);
            assert!(id(hostile).is_err());
        }
        let many = format!("<xml>{}<id>1</id></xml>", "<a>&amp;</a><b/>".repeat(SIZE / 16));
        assert_eq!(id(many), found("1"));
        let attributes = format!("<xml {}><id>1</id></xml>", "a=\"1\" ".repeat(SIZE / 6));
        assert_eq!(id(attributes), found("1"));
        let deep = |depth| format!("{}{}", "<a>".repeat(depth), "</a>".repeat(depth));
        assert_eq!(id(format!("<xml>{}<id>1</id></xml>", deep(63))), found("1"));
        refused_saying(format!("<xml>{}<id>1</id></xml>", deep(64)), "64 elements deep");
        assert_eq!(
            id(format!("<xml><id>{}</id></xml>", "&#65;".repeat(SIZE / 5))),
            found("A".repeat(SIZE / 5))
        );
    });
}

#[test]
fn what_reads_the_body_says_so() {
    assert_eq!(xml("/xml/id").describe(), "XML element /xml/id");
    assert!(xml("/xml/id").reads_body());
}

#[test]
fn a_path_that_is_none_is_refused_where_the_policy_is_built() {
    for path in ["", "/", "xml/id", "/xml/", "/xml//id", "//"] {
        let panic = std::panic::catch_unwind(|| xml(path)).unwrap_err();
        let message = panic.downcast_ref::<String>().unwrap();
        assert!(message.contains("give the path of an element"), "{message}");
    }
}
