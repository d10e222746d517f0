//! An answer as columns of a row, which a person can read.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tower_idempotency::{Answer, LedgerRow, RowPrint};

use crate::{
    dialect::{Dialect, sql},
    error::{Error, Kind},
};

/// A row as it is stored, but for what identifies it.
#[derive(Debug)]
pub struct Columns {
    pub(crate) id: i64,
    pub(crate) business_key: Option<Vec<u8>>,
    pub(crate) fingerprint: Option<Vec<u8>>,
    pub(crate) status: Option<i32>,
    pub(crate) headers: Option<Vec<u8>>,
    pub(crate) body: Option<Vec<u8>>,
    pub(crate) trailers: Option<Vec<u8>>,
}

/// What is selected, in the order of [`COLUMNS`].
pub(crate) type Selected = (
    i64,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<i32>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<Vec<u8>>,
);

pub(crate) const COLUMNS: &str = "id, business_key, fingerprint, status, headers, body, trailers";

impl From<Selected> for Columns {
    fn from(selected: Selected) -> Self {
        let (id, business_key, fingerprint, status, headers, body, trailers) = selected;
        Self { id, business_key, fingerprint, status, headers, body, trailers }
    }
}

impl Columns {
    /// Whether the row has no answer.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.status.is_none()
    }

    /// What its request had of what must match; `None` where that is not known.
    pub(crate) fn print(&self, table: &'static str) -> Result<Option<RowPrint>, Error> {
        let Some(bytes) = &self.fingerprint else { return Ok(None) };
        RowPrint::from_bytes(bytes).map(Some).map_err(|_| {
            let what = "its fingerprint is none of this version's".to_owned();
            Error::new(Kind::Unreadable { table, id: self.id, what })
        })
    }
}

/// What a row holds.
pub(crate) fn row(table: &'static str, columns: Columns) -> Result<LedgerRow, Error> {
    let print = columns.print(table)?;
    Ok(LedgerRow::new(answer(table, columns)?, print))
}

/// The answer that a row holds.
pub(crate) fn answer(table: &'static str, columns: Columns) -> Result<Answer, Error> {
    let Columns { id, status, headers, body, trailers, .. } = columns;
    let Some(status) = status else {
        return Err(Error::new(Kind::Unanswered { table, id }));
    };
    let unreadable = |what: &str| Error::new(Kind::Unreadable { table, id, what: what.to_owned() });
    let status = u16::try_from(status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let kept = body.is_some();
    let mut response = Response::new(body.unwrap_or_default().into());
    *response.status_mut() = status.ok_or_else(|| unreadable("its status is no HTTP status"))?;
    *response.headers_mut() = parse(&headers.unwrap_or_default())
        .ok_or_else(|| unreadable("its headers are no lines of `name: value`"))?;
    let mut answer = Answer::from_http(response);
    if !kept {
        answer = answer.without_body();
    }
    if let Some(trailers) = trailers {
        let trailers = parse(&trailers)
            .ok_or_else(|| unreadable("its trailers are no lines of `name: value`"))?;
        answer = answer.with_trailers(trailers);
    }
    Ok(answer)
}

/// Writes an answer into a row that has none; whether there was such a row.
pub(crate) async fn write<DB: Dialect>(
    on: &mut DB::Connection,
    table: &'static str,
    id: i64,
    answer: &Answer,
) -> Result<bool, Error> {
    let write = "UPDATE {table} SET status = ?, headers = ?, body = ?, trailers = ? \
         WHERE id = ? AND status IS NULL";
    let written = DB::write(on, sql::<DB>(write, table), columns(id, answer)).await;
    Ok(written.map_err(Error::database::<DB>)? == 1)
}

fn columns(id: i64, answer: &Answer) -> Columns {
    Columns {
        id,
        business_key: None,
        fingerprint: None,
        status: Some(answer.status().as_u16().into()),
        headers: Some(lines(answer.headers())),
        body: answer.body().map(|body| body.to_vec()),
        trailers: answer.trailers().map(lines),
    }
}

/// A line `name: value` for each. A value cannot hold a line's end, so this is exact.
fn lines(map: &HeaderMap) -> Vec<u8> {
    let mut lines = Vec::new();
    for (name, value) in map {
        lines.extend_from_slice(name.as_str().as_bytes());
        lines.extend_from_slice(b": ");
        lines.extend_from_slice(value.as_bytes());
        lines.push(b'\n');
    }
    lines
}

fn parse(lines: &[u8]) -> Option<HeaderMap> {
    let mut map = HeaderMap::new();
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        // A last line without its end was cut.
        let line = line.strip_suffix(b"\n")?;
        let colon = line.iter().position(|byte| *byte == b':')?;
        let value = line[colon + 1..].strip_prefix(b" ")?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        map.try_append(name, HeaderValue::from_bytes(value).ok()?).ok()?;
    }
    Some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_comes_back_as_it_went() {
        let mut response = Response::new("success\n: x".into());
        *response.status_mut() = StatusCode::ACCEPTED;
        response.headers_mut().append("x-a", HeaderValue::from_static("1: 2"));
        response.headers_mut().append("x-a", HeaderValue::from_bytes(b"\xff ").unwrap());
        response.headers_mut().append("x-empty", HeaderValue::from_static(""));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let whole = Answer::from_http(response).with_trailers(trailers);
        let unkept = Answer::text("large").without_body();
        for sent in [whole, unkept, Answer::new(StatusCode::NO_CONTENT)] {
            assert_eq!(answer("dedup", columns(7, &sent)).unwrap(), sent);
        }
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let error = |columns| answer("dedup", columns).unwrap_err();
        let whole = || columns(7, &Answer::text("success"));
        assert!(error(Columns { status: None, ..whole() }).is_unanswered());
        let cut = whole().headers.map(|lines| lines[..lines.len() - 1].to_vec());
        for headers in [cut, Some(b"no colon\n".to_vec()), Some(b"a: \x01\n".to_vec())] {
            let broken = Columns { headers, ..whole() };
            assert!(error(broken).to_string().contains("its headers"));
        }
        assert!(error(Columns { status: Some(70_000), ..whole() }).to_string().contains("status"));
        let unknown = Columns { fingerprint: Some(b"\x02".to_vec()), ..whole() };
        assert!(row("dedup", unknown).unwrap_err().to_string().contains("its fingerprint"));
    }
}
