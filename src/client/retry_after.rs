//! When a server wants a request again: `Retry-After`, RFC 9110, section 10.2.3.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap,
    header::{DATE, RETRY_AFTER},
};

/// How long to wait; `None` if the header is missing or says nothing that can be understood.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than any number is longer than anybody waits.
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    // By the server's clock where it tells that, so that it does not matter what this one's is.
    let now = headers
        .get(DATE)
        .and_then(|date| httpdate::parse_http_date(date.to_str().ok()?).ok())
        .unwrap_or_else(SystemTime::now);
    Some(at.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &'static str, date: Option<&'static str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        retry_after(&headers)
    }

    #[test]
    fn it_is_a_number_of_seconds_or_a_date_in_any_of_its_three_forms() {
        let secs = |n| Some(Duration::from_secs(n));
        assert_eq!(after("120", None), secs(120));
        assert_eq!(after(" 0 ", None), secs(0));
        assert_eq!(after("99999999999999999999", None), secs(u64::MAX));
        let noon = Some("Sun, 06 Nov 1994 12:00:00 GMT");
        for date in [
            "Sun, 06 Nov 1994 12:00:30 GMT",
            "Sunday, 06-Nov-94 12:00:30 GMT",
            "Sun Nov  6 12:00:30 1994",
        ] {
            assert_eq!(after(date, noon), secs(30), "{date}");
        }
        assert_eq!(after("Sun, 06 Nov 1994 11:59:59 GMT", noon), secs(0), "it is past");
        assert_eq!(
            after("Sun, 06 Nov 1994 12:00:30 GMT", None),
            secs(0),
            "by this clock it is past"
        );
        let far = after("Fri, 31 Dec 9999 23:59:59 GMT", Some("no date")).unwrap();
        assert!(far > Duration::from_secs(86400 * 365 * 7000));
    }

    #[test]
    fn what_cannot_be_understood_says_nothing() {
        for text in ["", "soon", "-1", "1.5", "+1", "1 s", "06 Nov 1994", "1,2"] {
            assert_eq!(after(text, None), None, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }
}
