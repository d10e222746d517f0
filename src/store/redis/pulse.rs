//! Watches over a connection that nobody uses: asks for the time when nothing has been heard for a
//! while, so that one that is dead is replaced before the next request needs it.

use std::{sync::Weak, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{connection::Connection, link::Link, origin::explain};
use crate::store::{StoreError, StoreErrorKind};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Nothing heard for so long is silence.
const SILENCE: Duration = Duration::from_secs(2);
/// Three of them, the silence and a look are less than the five seconds in which a connection that is
/// dead is to be replaced.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Watches until the connection is replaced, or its store is gone.
pub(super) async fn watch(
    link: &Weak<Link>,
    connection: Weak<Connection>,
    mut replaced: oneshot::Receiver<()>,
) {
    let mut told = false;
    // It is over when the other end is dropped.
    while timeout(EVERY, &mut replaced).await.is_err() {
        let (Some(link), Some(connection)) = (link.upgrade(), connection.upgrade()) else { return };
        // Not before the first look: until then the program may say what it accepts.
        if !std::mem::replace(&mut told, true) {
            link.tell_fitness(&connection);
        }
        while connection.silent_for() >= SILENCE {
            match timeout(ANSWER_WITHIN, connection.server_time()).await {
                Ok(Ok(now_ms)) => link.answered(&connection, now_ms),
                Ok(Err(failure)) => {
                    let error = explain(link.address(), "TIME", failure);
                    link.broken(&connection, &error);
                    break;
                }
                Err(_) => {
                    let message = format!("no sign of life from Redis at {}", link.address());
                    let error = StoreError::new(StoreErrorKind::Timeout, message);
                    if link.timed_out(&connection, &error) {
                        break;
                    }
                }
            }
        }
    }
}
