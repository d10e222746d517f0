//! A client whose server drops answers: what is charged without a key, and with one.
//!
//! ```sh
//! cargo run --example client
//! ```
//!
//! The server charges, and then breaks the connection in place of its first two answers. A client that
//! hears nothing has to send again, and is charged again, unless the server can tell that it is the same
//! order.

use std::{
    convert::Infallible,
    error::Error,
    future::{Ready, ready},
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::net::TcpListener;
use tower::{
    BoxError, Service, ServiceBuilder, ServiceExt,
    retry::{Policy as RetryPolicy, RetryLayer},
    timeout::TimeoutLayer,
};
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, RequestBody, Rule, Scope, client::ClientLayer,
};

/// How many answers the server drops.
const DROPPED: u32 = 2;

type HttpClient = Client<HttpConnector, Full<Bytes>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("A server charges 960 yuan and drops its first {DROPPED} answers.\n");
    println!("the client                        requests  charges  hears");
    println!("{}", "-".repeat(62));

    let shop = Shop::open().await?;
    tell("sends once", &shop, shop.order(http()).await);

    let shop = Shop::open().await?;
    let again = ServiceBuilder::new().layer(RetryLayer::new(Again)).service(http());
    tell("sends again", &shop, shop.order(again).await);

    let shop = Shop::open().await?;
    let with_key = ServiceBuilder::new()
        .layer(ClientLayer::new()) // a key, and sent again under it
        .layer(TimeoutLayer::new(Duration::from_secs(5))) // a send that hangs is one that failed
        .service(http());
    tell("sends again, with ClientLayer", &shop, shop.order(with_key).await);
    Ok(())
}

fn tell(client: &str, shop: &Shop, heard: Result<String, BoxError>) {
    let (requests, charges) = (shop.requests.load(SeqCst), shop.charges.load(SeqCst));
    let heard = heard.unwrap_or_else(|error| format!("error: {error}"));
    println!("{client:32}  {requests:8}  {charges:7}  {heard}");
}

fn http() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// Sends again what failed, as anybody might write it.
#[derive(Clone)]
struct Again;

impl<R, E> RetryPolicy<Request<Full<Bytes>>, R, E> for Again {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Full<Bytes>>,
        result: &mut Result<R, E>,
    ) -> Option<Ready<()>> {
        result.is_err().then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Full<Bytes>>) -> Option<Request<Full<Bytes>>> {
        Some(request.clone())
    }
}

/// A server that drops answers.
struct Shop {
    address: SocketAddr,
    requests: Arc<AtomicU32>,
    charges: Arc<AtomicU32>,
}

impl Shop {
    async fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (requests, charges) = (Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default());
        // A request without a key is let through, so that it can be seen what that means.
        let rule = Rule::new("charge", Policy::api(Scope::everyone()).optional());
        let counted = charges.clone();
        let charging = ServiceBuilder::new()
            .layer(IdempotencyLayer::new(MemoryStore::new(), rule))
            .service_fn(move |_: Request<RequestBody<Incoming>>| {
                let number = counted.fetch_add(1, SeqCst) + 1;
                ready(Ok::<_, Infallible>(Response::new(format!("charge {number}"))))
            });
        let came = requests.clone();
        let dropping = tower::service_fn(move |request| {
            let answer = charging.clone().oneshot(request);
            let came = came.clone();
            async move {
                let answer = answer.await;
                if came.fetch_add(1, SeqCst) < DROPPED {
                    // hyper ends the connection, and the client hears nothing.
                    return Err(io::Error::other("dropped"));
                }
                answer.map_err(|never| match never {})
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(dropping.clone());
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(Self { address, requests, charges })
    }

    /// Orders once; what the client hears.
    async fn order<S>(&self, client: S) -> Result<String, BoxError>
    where
        S: Service<Request<Full<Bytes>>, Response = Response<Incoming>>,
        S::Error: Into<BoxError>,
    {
        let request =
            Request::post(format!("http://{}/charge", self.address)).body("960".into())?;
        let answer = client.oneshot(request).await.map_err(Into::into)?;
        Ok(String::from_utf8(answer.into_body().collect().await?.to_bytes().into())?)
    }
}
