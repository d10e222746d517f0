//! What goes wrong, one thing a scene, for every scheme.

use std::net::SocketAddr;

use tokio::task::{JoinSet, spawn};

use crate::{
    Error,
    arguments::Point,
    gateway::Gateway,
    notification::Notification,
    scheme::Scheme,
    servers::{Servers, Shop},
};

/// The price of an order.
pub(crate) const YUAN: i64 = 960;
/// Enough for the incident to happen.
const IN_THE_ACCOUNT: i64 = 10 * YUAN;
const DELIVERIES: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    OneAfterAnother,
    AtOnce,
    NewIds,
    Flushed,
    KilledBeforeCommit,
    KilledAfterCommit,
    EverythingAtOnce,
}

pub(crate) const SCENES: [Scene; 7] = [
    Scene::OneAfterAnother,
    Scene::AtOnce,
    Scene::NewIds,
    Scene::Flushed,
    Scene::KilledBeforeCommit,
    Scene::KilledAfterCommit,
    Scene::EverythingAtOnce,
];

/// What came of one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) charges: i64,
    /// Whether every delivery was answered `success` in the end.
    pub(crate) heard: bool,
}

impl Scene {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::OneAfterAnother => "delivered 5 times",
            Self::AtOnce => "5 times at once",
            Self::NewIds => "under 5 ids",
            Self::Flushed => "5 times, Redis flushed after the first",
            Self::KilledBeforeCommit => "killed before the commit, delivered again",
            Self::KilledAfterCommit => "killed after the commit, delivered again",
            Self::EverythingAtOnce => "the same, Redis flushed, under a new id",
        }
    }

    fn killed_at(self) -> Option<Point> {
        match self {
            Self::KilledBeforeCommit => Some(Point::BeforeCommit),
            Self::KilledAfterCommit | Self::EverythingAtOnce => Some(Point::AfterCommit),
            _ => None,
        }
    }
}

/// Plays a scene with an order for each scheme.
pub(crate) async fn play(servers: &Servers, scene: Scene) -> Result<Vec<Cell>, Error> {
    let (gateway, shop) = (Gateway::default(), servers.shop(None)?);
    let mut orders = Vec::new();
    for scheme in Scheme::ALL {
        let notification = Notification::fresh(YUAN);
        shop.open(&notification, IN_THE_ACCOUNT).await?;
        orders.push((scheme, notification));
    }
    let heard_before = before(servers, &gateway, &shop, scene, &orders).await?;
    if matches!(scene, Scene::Flushed | Scene::EverythingAtOnce) {
        servers.flush_redis().await;
    }
    let mut playing = Vec::new();
    for (scheme, notification) in orders.clone() {
        let gateway = gateway.clone();
        playing.push(spawn(deliveries(gateway, shop.address(), scene, scheme, notification)));
    }
    let mut cells = Vec::new();
    for (((scheme, notification), playing), heard) in orders.iter().zip(playing).zip(heard_before) {
        let heard = playing.await?? && heard;
        cells.push(Cell { charges: charges(servers, &shop, *scheme, notification).await?, heard });
    }
    Ok(cells)
}

/// What happens before anything goes wrong, or what goes wrong first; whether the gateway heard
/// `success` of each order.
async fn before(
    servers: &Servers,
    gateway: &Gateway,
    shop: &Shop,
    scene: Scene,
    orders: &[(Scheme, Notification)],
) -> Result<Vec<bool>, Error> {
    let mut heard = Vec::new();
    for (scheme, notification) in orders {
        if let Some(point) = scene.killed_at() {
            let doomed = servers.shop(Some(point))?;
            let (gateway, address) = (gateway.clone(), doomed.address());
            let (scheme, notification) = (*scheme, notification.clone());
            let delivery =
                spawn(async move { gateway.deliver(address, scheme, &notification).await });
            doomed.kill_when_paused();
            if delivery.await?.is_ok() {
                return Err("a killed process has answered".into());
            }
            // It will be delivered again.
            heard.push(true);
        } else if scene == Scene::Flushed {
            heard.push(gateway.deliver(shop.address(), *scheme, notification).await?);
        } else {
            heard.push(true);
        }
    }
    Ok(heard)
}

/// The deliveries of one order; whether all of them were answered `success`.
async fn deliveries(
    gateway: Gateway,
    shop: SocketAddr,
    scene: Scene,
    scheme: Scheme,
    notification: Notification,
) -> Result<bool, Error> {
    let count = match scene {
        Scene::OneAfterAnother | Scene::AtOnce | Scene::NewIds => DELIVERIES,
        Scene::Flushed => DELIVERIES - 1,
        _ => 1,
    };
    let mut under_way = JoinSet::new();
    let mut heard = true;
    for number in 0..count {
        let notification = match scene {
            Scene::NewIds | Scene::EverythingAtOnce => notification.under_new_id(number),
            _ => notification.clone(),
        };
        let gateway = gateway.clone();
        under_way.spawn(async move { gateway.deliver(shop, scheme, &notification).await });
        if scene != Scene::AtOnce {
            while let Some(delivered) = under_way.join_next().await {
                heard &= delivered??;
            }
        }
    }
    while let Some(delivered) = under_way.join_next().await {
        heard &= delivered??;
    }
    Ok(heard)
}

/// How often an order was charged; the books must agree with the account.
async fn charges(
    servers: &Servers,
    shop: &Shop,
    scheme: Scheme,
    notification: &Notification,
) -> Result<i64, Error> {
    let books = shop.books(notification).await?;
    let order = &notification.order_id;
    if books.balance + books.charged != IN_THE_ACCOUNT || books.charged != YUAN * books.charges {
        return Err(format!("money was lost or made: {} {order}", scheme.name()).into());
    }
    let (charges, charged) = servers.provider.charged(order);
    if charged != YUAN * charges || (charges > 0) != (scheme == Scheme::Outside) {
        return Err(format!("the provider charged what it should not: {order}").into());
    }
    Ok(books.charges + charges)
}
