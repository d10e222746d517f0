//! The primary that sentinels name: asked for at each connect, and looked after while it is connected.

use std::time::Duration;

use redis::Value;
use tokio::{task::JoinSet, time::timeout};

use super::{
    Failure,
    info::Info,
    origin::{Greeting, Place, dial, explain, greet},
    reply,
    resp::Command,
    servers::Target,
    tls::Tls,
};
use crate::store::{StoreError, StoreErrorKind};

/// How long one sentinel may take. All are asked at once, so that one that is gone costs this once.
const SENTINEL_WITHIN: Duration = Duration::from_millis(300);

/// The sentinels of one primary.
pub(super) struct Sentinels {
    sentinels: Vec<Target>,
    /// Its name stands where its host would.
    primary: Target,
    tls: Option<Tls>,
}

/// Which server is the primary, as sentinels say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    place: Place,
    /// Grows with each failover.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(sentinels: &[Target], primary: &Target, tls: Option<Tls>) -> Self {
        Self { sentinels: sentinels.to_vec(), primary: primary.clone(), tls }
    }

    /// Whether they or the primary are reached over TLS.
    pub(super) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    fn name(&self) -> &str {
        self.primary.place.host()
    }

    /// Connects to the server that is named, if it says of itself that it is a primary.
    pub(super) async fn connect(&self) -> Result<Greeting, Failure> {
        let named = self.named().await?;
        let target = Target { place: named.place.clone(), ..self.primary.clone() };
        let connected = async { greet(dial(&target, self.tls.as_ref()).await?).await };
        let mut greeting = connected.await.map_err(|failure| {
            // Which of the servers that had the name it was.
            Failure::Store(explain(&named.place.to_string(), "the connection", failure))
        })?;
        if is_replica(&greeting).await? {
            let message = format!(
                "the sentinels name {} as {}, and it is a replica still: a failover is going on",
                named.place,
                self.name()
            );
            return Err(StoreError::new(StoreErrorKind::Unreachable, message).into());
        }
        greeting.named = Some(named);
        Ok(greeting)
    }

    /// Whether they name another primary by now. One that is behind the others is not believed.
    pub(super) async fn name_another(&self, than: &Named) -> bool {
        match self.named().await {
            Ok(named) => named.epoch > than.epoch && named.place != than.place,
            Err(_) => false,
        }
    }

    /// The primary: of several answers the one of the newest epoch.
    async fn named(&self) -> Result<Named, StoreError> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            let (sentinel, tls, name) =
                (sentinel.clone(), self.tls.clone(), self.name().to_owned());
            asked.spawn(async move {
                let place = sentinel.place.to_string();
                match timeout(SENTINEL_WITHIN, ask(&sentinel, tls.as_ref(), &name)).await {
                    Ok(Ok(Some(named))) => Ok(named),
                    Ok(Ok(None)) => Err(format!("{place} knows none of that name")),
                    Ok(Err(failure)) => Err(explain(&place, "SENTINEL", failure).to_string()),
                    Err(_) => Err(format!("no answer from {place} within {SENTINEL_WITHIN:?}")),
                }
            });
        }
        let (mut newest, mut wrong) = (None::<Named>, Vec::new());
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok(Ok(named))
                    if newest.as_ref().is_none_or(|newest| named.epoch > newest.epoch) =>
                {
                    newest = Some(named);
                }
                Ok(Ok(_)) => {}
                Ok(Err(why)) => wrong.push(why),
                Err(_) => {}
            }
        }
        newest.ok_or_else(|| {
            let message = format!("no sentinel names {}: {}", self.name(), wrong.join("; "));
            StoreError::new(StoreErrorKind::Unreachable, message)
        })
    }
}

/// Asks one sentinel; `None` if it does not know the name.
async fn ask(sentinel: &Target, tls: Option<&Tls>, name: &str) -> Result<Option<Named>, Failure> {
    let wire = dial(sentinel, tls).await?;
    let command = Command::new("SENTINEL").arg("MASTER").arg(name);
    let fields = match wire.send(&command).await? {
        Value::ServerError(error)
            if error.details().is_some_and(|text| text.contains("No such")) =>
        {
            return Ok(None);
        }
        Value::ServerError(error) => return Err(Failure::Server(error)),
        Value::Array(fields) => fields,
        Value::Map(pairs) => pairs.into_iter().flat_map(|(name, value)| [name, value]).collect(),
        _ => return Err(reply::garbled("SENTINEL MASTER").into()),
    };
    named(&fields).map(Some).ok_or_else(|| reply::garbled("SENTINEL MASTER").into())
}

/// The fields of a primary: names and values by turns.
fn named(fields: &[Value]) -> Option<Named> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    };
    let field = |name: &str| {
        let pair = fields.chunks_exact(2).find(|pair| text(&pair[0]).as_deref() == Some(name))?;
        text(&pair[1])
    };
    let place = Place::Tcp(field("ip")?, field("port")?.parse().ok()?);
    Some(Named { place, epoch: field("config-epoch")?.parse().ok()? })
}

/// By what it says of itself, in `INFO` or, where that is refused, by `ROLE`.
async fn is_replica(greeting: &Greeting) -> Result<bool, Failure> {
    if let Some(info) = &greeting.info {
        return Ok(Info::is_replica(info));
    }
    match greeting.wire.send(&Command::new("ROLE")).await? {
        Value::Array(fields) => {
            Ok(!matches!(fields.first(), Some(Value::BulkString(role)) if role == b"master"))
        }
        // Its user may not ask. Writes to a replica are refused all the same.
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_primary_are_read_by_name_and_others_left_alone() {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let fields = ["name", "m", "ip", "10.0.0.1", "port", "6380", "x", "y", "config-epoch", "7"];
        let mut fields: Vec<_> = fields.into_iter().map(bulk).collect();
        let place = Place::Tcp("10.0.0.1".into(), 6380);
        assert_eq!(named(&fields), Some(Named { place, epoch: 7 }));
        fields[9] = bulk("many");
        assert_eq!(named(&fields), None);
        assert_eq!(named(&fields[..8]), None);
    }
}
