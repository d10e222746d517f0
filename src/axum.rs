//! What axum handlers use: `Operation` as an extractor, `Answer` as a response.

use std::convert::Infallible;

use axum_core::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{
    body::{RequestBody, Whole},
    in_words,
    operation::Operation,
    record::Answer,
};

/// There is no [`Operation`]: no idempotency layer has granted this request.
#[derive(Clone, Copy)]
pub struct OperationMissing(());

impl std::fmt::Debug for OperationMissing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        in_words::debug(f, None, self)
    }
}

impl std::fmt::Display for OperationMissing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this handler asks for an Operation, and its request has none. Either no idempotency rule is \
             for it: put an IdempotencyLayer around the route, with a rule for its method and path. Or \
             the policy lets it pass without an identity (Policy::optional, Policy::observe): ask for \
             Option<Operation>",
        )
    }
}

impl std::error::Error for OperationMissing {}

impl IntoResponse for OperationMissing {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, self.to_string()).into_response()
    }
}

impl<S: Sync> FromRequestParts<S> for Operation {
    type Rejection = OperationMissing;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, OperationMissing> {
        parts.extensions.get::<Self>().cloned().ok_or(OperationMissing(()))
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Operation {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(parts.extensions.get::<Self>().cloned())
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let (status, headers, data, trailers) = self.into_parts();
        let whole = Whole { data: data.unwrap_or_default(), trailers };
        let mut response = Response::new(Body::new(RequestBody::<Body>::whole(whole)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}
