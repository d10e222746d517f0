//! How a refusal is said to a sender that does not read problem documents, or takes some statuses for
//! the end.

use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};

use crate::{
    record::Answer,
    refusal::{Refusal, RefusalKind},
};

/// Whether the same delivery may go through when it comes again.
fn is_temporary(kind: RefusalKind) -> bool {
    match kind {
        RefusalKind::BodyCutShort
        | RefusalKind::BodyTooSlow
        | RefusalKind::InProgress
        | RefusalKind::OutcomeUnknown
        | RefusalKind::StoreUnavailable
        | RefusalKind::RecordUnreadable
        | RefusalKind::ShuttingDown
        // The server's mistake, which somebody may mend.
        | RefusalKind::ScopeMissing
        // Once a delivery with the business key has gone through, this one is answered too.
        | RefusalKind::BusinessKeyMissing => true,
        RefusalKind::IdentityMissing
        | RefusalKind::IdentityMalformed
        | RefusalKind::BodyTooLarge
        | RefusalKind::Mismatch
        | RefusalKind::AnswerNotKept
        | RefusalKind::TokenMissing
        | RefusalKind::TokenUnknown
        | RefusalKind::NotVerified => false,
    }
}

/// The problem document, with a status that is a server's error wherever the delivery may go through
/// when it comes again.
pub(super) fn temporary_is_5xx(refusal: &Refusal) -> Answer {
    if is_temporary(refusal.kind()) && !refusal.status().is_server_error() {
        refusal.clone().with_status(StatusCode::SERVICE_UNAVAILABLE).to_problem()
    } else {
        refusal.to_problem()
    }
}

/// The same with this body in place of the document.
pub(super) fn with_body(
    refusal: &Refusal,
    content_type: &'static str,
    body: impl Into<bytes::Bytes>,
) -> Answer {
    temporary_is_5xx(refusal)
        .with_header(CONTENT_TYPE, HeaderValue::from_static(content_type))
        .with_body(body)
}
