//! A handler that ends in every way there is.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use tokio::time::sleep;
use tower_idempotency::{Operation, Outcome};

use crate::{
    chance::Chance,
    journal::{End, Journal},
    plan::{ANSWER_LIMIT, Plan},
};

pub(crate) type BodyError = std::io::Error;
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, BodyError>;
pub(crate) type Answered = Result<Response<AnswerBody>, BodyError>;

/// What all runs of a shop share.
#[derive(Clone)]
pub(crate) struct Shop {
    pub(crate) plan: Plan,
    pub(crate) chance: Chance,
    pub(crate) journal: Arc<Journal>,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Status(u16, End),
    Says(Outcome, u16, End),
    MarksUncertain,
    Panics,
    Fails,
    /// Too large to be kept.
    Large,
    BreaksOff,
}

impl Shop {
    fn fate(&self) -> Fate {
        let failed = if self.plan.api { End::Released } else { End::Failed };
        let broken = if self.plan.api { End::Kept } else { End::Failed };
        let unknown = self.chance.pick(&[End::UnknownDone, End::UnknownNotDone]);
        self.chance.pick(&[
            Fate::Status(200, End::Kept),
            Fate::Status(200, End::Kept),
            Fate::Status(201, End::Kept),
            Fate::Status(503, failed),
            Fate::Status(500, broken),
            Fate::Status(504, unknown),
            Fate::Says(Outcome::Release, 200, End::Released),
            Fate::Says(Outcome::Keep, 503, End::Kept),
            Fate::Says(Outcome::Uncertain, 200, unknown),
            Fate::MarksUncertain,
            Fate::Panics,
            Fate::Fails,
            Fate::Large,
            Fate::BreaksOff,
        ])
    }

    /// A moment, or some leases.
    fn duration(&self) -> Duration {
        if self.chance.one_in(2) {
            return self.chance.up_to_ms(500);
        }
        let leases = u32::try_from(self.chance.below(3000)).expect("a small number");
        (self.plan.lease * leases / 1000).min(Duration::from_secs(4))
    }

    /// Runs one operation. `plainly` is without anything that goes wrong.
    pub(crate) async fn run(self, operation: Operation, plainly: bool) -> Answered {
        let run = self.journal.start(&operation);
        let text = self.journal.body(&run);
        let fate = if plainly { Fate::Status(200, End::Kept) } else { self.fate() };
        let unknown = self.chance.pick(&[End::UnknownDone, End::UnknownNotDone]);
        if !plainly {
            sleep(self.duration()).await;
        }
        let end = |end| self.journal.end(&run, end);
        match fate {
            Fate::Status(status, ended) => {
                end(ended);
                Ok(answer(status, Full::from(text)))
            }
            Fate::Says(outcome, status, ended) => {
                end(ended);
                let mut answer = answer(status, Full::from(text));
                answer.extensions_mut().insert(outcome);
                Ok(answer)
            }
            Fate::MarksUncertain => {
                operation.mark_uncertain();
                end(unknown);
                Ok(answer(200, Full::from(text)))
            }
            Fate::Panics => {
                end(unknown);
                // Without the message of a panic, of which there are hundreds here.
                std::panic::resume_unwind(Box::new("a handler of the test panics"))
            }
            Fate::Fails => {
                end(unknown);
                Err(BodyError::other("a handler of the test fails"))
            }
            Fate::Large => {
                end(End::Kept);
                Ok(answer(200, Full::from(format!("{text}{}", " ".repeat(ANSWER_LIMIT)))))
            }
            Fate::BreaksOff => {
                end(unknown);
                Ok(answer(200, BreaksOff(Some(text))))
            }
        }
    }
}

fn answer<B>(status: u16, body: B) -> Response<AnswerBody>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut response = Response::new(body.map_err(BodyError::other).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

struct BreaksOff(Option<String>);

impl Body for BreaksOff {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = self.0.take().map(|text| Frame::data(Bytes::from(text)));
        Poll::Ready(Some(frame.ok_or_else(|| BodyError::other("the body of the test breaks off"))))
    }
}

/// Long enough for everything that goes on by itself to be over.
pub(crate) fn quiet(plan: &Plan) -> Duration {
    plan.lease * 3 + Duration::from_secs(30)
}
