//! Watches over a connection: looks after what the program has in the store, and asks for the time when
//! nothing has been heard for a while, so that one that is dead is replaced before the next request
//! needs it.

use std::{sync::Weak, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};

use super::{again, connection::Connection, lane::Lane, link::Link, origin::explain};
use crate::store::{StoreError, StoreErrorKind};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Nothing heard for so long is silence.
const SILENCE: Duration = Duration::from_secs(2);
/// Three of them, the silence and a look are less than the five seconds in which a connection that is
/// dead is to be replaced.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// The canary is looked at each so many times.
const CANARY_EACH: u32 = 5;

/// Watches until the connection is replaced, or its store is gone.
pub(super) async fn watch(
    link: &Weak<Link>,
    connection: Weak<Connection>,
    mut replaced: oneshot::Receiver<()>,
) {
    for look in 0.. {
        let (Some(link), Some(connection)) = (link.upgrade(), connection.upgrade()) else { return };
        if !link.is_side() {
            let lane = Lane::new(&link, &connection, Instant::now(), false);
            again::attend(&lane, look % CANARY_EACH == 0).await;
            if look % CANARY_EACH == 1 {
                again::ask_for_history(&lane).await;
            }
        }
        // Not at once: until then the program may say what it accepts.
        if look == 1 && !link.is_side() {
            let now_ms = connection.server_ms(Instant::now());
            link.known.tell_fitness(connection.info(), now_ms);
        }
        beat(&link, &connection).await;
        #[cfg(feature = "redis-sentinel")]
        link.follow(&connection).await;
        drop((link, connection));
        // It is over when the other end is dropped.
        if timeout(EVERY, &mut replaced).await.is_ok() {
            return;
        }
    }
}

/// Asks for a sign of life if there was none for a while.
async fn beat(link: &Link, connection: &Connection) {
    while connection.silent_for() >= SILENCE {
        match timeout(ANSWER_WITHIN, connection.server_time()).await {
            Ok(Ok(now_ms)) => link.answered(connection, now_ms),
            Ok(Err(failure)) => {
                let error = explain(link.address(), "TIME", failure);
                return link.broken(connection, &error);
            }
            Err(_) => {
                let message = format!("no sign of life from Redis at {}", link.address());
                let error = StoreError::new(StoreErrorKind::Timeout, message);
                if link.timed_out(connection, &error) {
                    return;
                }
            }
        }
    }
}
