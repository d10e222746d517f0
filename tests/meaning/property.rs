//! What holds for every JSON value: how it is written never changes its meaning, and any change of a
//! value does.

use proptest::{collection::vec, prelude::*};
use tower_idempotency::json;

use crate::{
    json_meaning, meaning,
    spelling::{Value, write},
};

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Word("null")),
        Just(Value::Word("true")),
        Just(Value::Word("false")),
        (any::<bool>(), "[1-9][0-9]{0,30}|0", -40..40_i32)
            .prop_map(|(negative, digits, exponent)| Value::number(negative, &digits, exponent)),
        "[a-c\"\\\\/\u{e9}\u{1f4b0}\n]{0,4}".prop_map(Value::Text),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::Items),
            vec(("[a-d\u{e9}]{0,2}", inner), 0..5).prop_map(Value::members),
        ]
    })
}

/// Choices of spelling, taken one after the other and round again.
fn choices() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 1..24)
}

proptest! {
    #[test]
    fn how_a_value_is_written_never_changes_its_meaning(
        value in value(),
        one in choices(),
        other in choices(),
    ) {
        let (one, other) = (write(&value, &one), write(&value, &other));
        prop_assert_eq!(json_meaning(&one), json_meaning(&other), "{} and {}", one, other);
    }

    #[test]
    fn two_values_never_mean_the_same(one in value(), other in value(), spelled in choices()) {
        let (one_is, other_is) = (write(&one, &spelled), write(&other, &spelled));
        prop_assert_eq!(
            json_meaning(&one_is) == json_meaning(&other_is),
            one == other,
            "{} and {}",
            one_is,
            other_is
        );
    }

    #[test]
    fn any_change_of_a_value_changes_the_meaning(value in value(), at in any::<prop::sample::Index>(), spelled in choices()) {
        let mut changed = value.clone();
        changed.change(at.index(value.size()));
        prop_assert_ne!(&changed, &value);
        prop_assert_ne!(json_meaning(&write(&changed, &spelled)), json_meaning(&write(&value, &spelled)));
    }

    #[test]
    fn no_body_makes_a_comparison_panic(
        pieces in vec(prop::sample::select(vec![
            "{", "}", "[", "]", ":", ",", "\"", "\"a\"", "\"a\":", "\\", "\\ud800", "7", "-", "0", ".", "e",
            "E+", "null", "true", " ", "\n", "\u{feff}", "\u{e9}",
        ]), 0..24),
        bytes in vec(any::<u8>(), 0..100),
    ) {
        let _ = meaning(&json(""), pieces.concat());
        let _ = meaning(&json("/a"), pieces.concat());
        let _ = meaning(&json(""), bytes);
    }
}
