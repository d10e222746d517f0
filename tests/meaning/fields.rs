//! Fields one by one: equal meanings are equal, other values are not, and what cannot be compared is
//! refused.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use tower_idempotency::{
    Field, FieldValue, Input, each, extension, form, header, json, path, query, sent, xml,
};

use crate::{json_meaning, meaning, meaning_in};

#[track_caller]
fn refused(body: &str, wrong: &str) {
    let detail = meaning(&json(""), body).unwrap_err();
    assert!(detail.contains(wrong), "{detail}");
}

/// All of one class are one meaning, and no two classes are.
#[track_caller]
fn classes(classes: &[&[&str]]) {
    for (place, class) in classes.iter().enumerate() {
        for body in *class {
            assert_eq!(json_meaning(body), json_meaning(class[0]), "{body}");
            for other in classes[place + 1..].iter().flat_map(|class| class.iter()) {
                assert_ne!(json_meaning(body), json_meaning(other), "{body} and {other}");
            }
        }
    }
}

#[test]
fn numbers_are_compared_as_numbers_and_never_as_floats() {
    let long = "1".repeat(400);
    let long_too = format!("{long}.000");
    let longer = format!("{long}1");
    classes(&[
        &["960", "960.0", "9.6e2", "96E+1", "96000e-2", "0.00960e5", "960.00e0", "960e-0"],
        &["-960", "-9.6e2"],
        &["961"],
        &["96"],
        &["960.0000000000000000000000000001"],
        &["9007199254740992", "9007199254740992.0"],
        &["9007199254740993"],
        &["0.1", "1e-1", "0.10"],
        &["0.1000000000000000055511151231257827"],
        &["0", "-0", "0.0", "0e7", "-0.000e-99", "0e99999999999999999999999"],
        &["1e400", "10e399"],
        &["1e-400"],
        &["1e999999999999999999"],
        &[&long, &long_too],
        &[&longer],
    ]);
}

#[test]
fn types_are_different() {
    classes(&[
        &["1"],
        &["\"1\"", "\"\\u0031\""],
        &["true"],
        &["\"true\""],
        &["false"],
        &["null"],
        &["\"null\""],
        &["[]", "[ ]"],
        &["{}", "{ \n}"],
        &["[1]"],
        &["[[1]]"],
        &["[null]"],
        &["\"\""],
        &["\"[]\""],
        &["0"],
    ]);
}

#[test]
fn the_order_of_members_does_not_matter_and_that_of_items_does() {
    classes(&[
        &[
            r#"{"a":1,"b":{"c":2,"d":[3,4]}}"#,
            "\t{ \"b\" : {\"d\":[3.0,\n4e0],\"c\":2}\r\n,\"a\":1}",
            r#"{"\u0061":1,"b":{"d":[3,4],"c":2}}"#,
        ],
        &[r#"{"a":1,"b":{"c":2,"d":[4,3]}}"#],
        &[r#"{"a":1,"b":{"c":2,"d":[3,4]},"e":null}"#],
        &[r#"{"a":1,"c":2,"b":{"d":[3,4]}}"#],
        &[r#"{"A":1,"b":{"c":2,"d":[3,4]}}"#],
        &[r#"{"a":1,"b":2}"#],
        &[r#"{"a":2,"b":1}"#],
        &[r#"{"a\",\"b":2}"#],
    ]);
    classes(&[&[r#"["a","b"]"#], &[r#"["a,b"]"#], &[r#"["a\",\"b"]"#], &[r#"["b","a"]"#]]);
}

#[test]
fn text_is_compared_character_by_character() {
    classes(&[
        &["\"\u{e9}\"", "\"\\u00e9\"", "\"\\u00E9\""],
        &["\"e\u{301}\""],
        &["\"\u{1f4b0}\"", "\"\\ud83d\\udcb0\""],
        &["\"/\"", "\"\\/\""],
        &["\"\\n\"", "\"\\u000a\""],
        &["\"\\\\n\""],
        &["\"EUR\""],
        &["\"eur\""],
        &["\"EUR \""],
    ]);
}

#[test]
fn a_field_that_is_absent_is_no_null() {
    let amount = json("/amount");
    assert_eq!(meaning(&amount, "{}"), Ok(None));
    assert_eq!(meaning(&amount, r#"{"Amount": 1}"#), Ok(None));
    assert_eq!(meaning(&amount, r#"{"amount": null}"#), Ok(Some(FieldValue::new("null"))));
    let nested = json("/order/amount");
    assert_eq!(
        meaning(&nested, r#"{"order": {"amount": 1.0}}"#),
        meaning(&nested, r#"{"x": 2, "order": {"y": 3, "amount": 1}}"#)
    );
}

#[test]
fn what_readers_disagree_about_is_refused() {
    refused(r#"{"a":1,"a":1}"#, "the member `a` is there twice");
    refused(r#"{"a":1,"\u0061":2}"#, "the member `a` is there twice");
    refused(r#"[{"x":{"a":1,"b":2,"a":3}}]"#, "the member `a` is there twice");
    refused(r#""\ud800""#, "an escape that is no character");
    refused(r#"{"\udc00": 1}"#, "an escape that is no character");
    refused("1e1000000000000000000", "an exponent without bounds");
    refused("[1e-99999999999999999999]", "an exponent without bounds");
    refused("", "it is empty");
    refused("{", "no JSON document");
    refused("1 2", "no JSON document");
    refused("01", "no JSON document");
    let amount = json("/amount");
    for body in ["", "[]", "x", r#"{"amount": 1, "amount": 1}"#, r#"{"amount": {"a": 1, "a": 1}}"#]
    {
        assert!(meaning(&amount, body).is_err(), "{body}");
    }
    // Beside the field nothing is compared, and nothing is refused.
    assert!(meaning(&amount, r#"{"a": 1, "a": "\ud800", "amount": 1}"#).is_ok());
}

#[test]
fn hostile_values_take_bounded_time_and_no_stack() {
    let started = Instant::now();
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(meaning(&json(""), deep(64)).is_ok());
    refused(&deep(65), "more than 64 arrays and objects deep");
    refused(&deep(5 << 20), "more than 64 arrays and objects deep");
    refused(&"[".repeat(10 << 20), "no JSON document");
    refused(&format!("{}1{}", r#"{"a":"#.repeat(1 << 20), "}".repeat(1 << 20)), "64 arrays");
    json_meaning(&format!("[{}1]", "1,".repeat(2 << 20)));
    json_meaning(&"7".repeat(4 << 20));
    json_meaning(&format!("0.{}1e-7", "0".repeat(4 << 20)));
    json_meaning(&format!("\"{}\"", "\\u0041".repeat(1 << 20)));
    // Names in the worst order, on each of many levels.
    let members: Vec<String> = (0..1 << 16).rev().map(|n| format!("\"{n:07}\":1")).collect();
    let wide = format!("{{{}}}", members.join(","));
    json_meaning(&format!("{}{wide}{}", r#"{"a":"#.repeat(63), "}".repeat(63)));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn the_other_sources_are_compared_byte_by_byte() {
    let (a, b) = (form("amount"), xml("/x/amount"));
    assert_eq!(meaning(&a, "amount=9%360&x=1"), meaning(&a, "y=2&amount=960"));
    assert_ne!(meaning(&a, "amount=960.00"), meaning(&a, "amount=960"));
    assert_ne!(meaning(&a, "amount="), meaning(&a, "x=1"));
    assert!(meaning(&a, "amount=1&amount=1").is_err());
    assert_eq!(
        meaning(&b, "<x><amount>960</amount></x>"),
        meaning(&b, "<x><y/><amount><![CDATA[960]]></amount></x>")
    );
    assert_ne!(
        meaning(&b, "<x><amount>960</amount></x>"),
        meaning(&b, "<x><amount>961</amount></x>")
    );
    assert!(meaning(&b, "<x><amount/><amount/></x>").is_err());

    let lines = |values: &[&'static str]| {
        let headers: HeaderMap =
            values.iter().map(|v| (http::header::ETAG, HeaderValue::from_static(v))).collect();
        meaning_in(&header("ETag"), headers, "")
    };
    assert_eq!(lines(&[]), Ok(None));
    assert_eq!(lines(&[" W/\"a, b\" "]), Ok(Some(FieldValue::new("W/\"a, b\""))));
    assert_ne!(lines(&["a"]), lines(&["\"a\""]));
    assert!(lines(&["a", "a"]).is_err());
}

#[derive(Clone)]
struct User(&'static str);

impl AsRef<str> for User {
    fn as_ref(&self) -> &str {
        self.0
    }
}

#[test]
fn what_stands_in_the_head_is_compared_too() {
    let request = Request::post("/orders/7%20?to=a%2Db").extension(User("u")).body(()).unwrap();
    let (head, nothing) = (request.into_parts().0, Bytes::new());
    let from = Input::new(&head, &nothing).matched_by("/orders/{id}");
    let is = |field: &dyn Field, value: &'static str, name: &str| {
        assert_eq!(field.value(&from).unwrap(), Some(FieldValue::new(value)));
        assert_eq!(field.name(), name);
    };
    is(&path("id"), "7 ", "path parameter id");
    is(&query("to"), "a-b", "query parameter to");
    is(&extension::<User>(), "u", &extension::<User>().name());
    assert_eq!(query("x").value(&from).unwrap(), None);
    assert!(Field::fits_pattern(&path("id"), Some("/{other}")).is_err());
    assert!(Field::fits_pattern(&sent(path("id")), None).is_err());
    assert!(Field::fits_pattern(&each("", path("id")), None).is_err());
}

#[test]
fn a_field_of_each_item_is_compared_item_by_item() {
    let amounts = each("/items", json("/amount"));
    let of = |items: &str| meaning(&amounts, format!(r#"{{"items": {items}}}"#));
    assert_eq!(
        of(r#"[{"amount": 1}, {"amount": 2}]"#),
        of(r#"[{"amount": 1.0}, {"b": 0, "amount": 2}]"#)
    );
    let others = [
        r#"[{"amount": 2}, {"amount": 1}]"#,
        r#"[{"amount": 1}]"#,
        r#"[{"amount": 1}, {}]"#,
        r#"[{"amount": 1}, {"amount": null}]"#,
        r#"[{"amount": 1}, {"amount": 2}, {}]"#,
    ];
    for other in others {
        assert_ne!(of(r#"[{"amount": 1}, {"amount": 2}]"#), of(other), "{other}");
    }
    assert_eq!(meaning(&amounts, "{}"), Ok(None));
    assert!(of("[]").is_err());
    assert!(of(r#"[{"amount": 1, "amount": 1}]"#).unwrap_err().contains("item 0"));
    assert_eq!(amounts.name(), "JSON field /amount of each item of JSON field /items");
}
