//! tonic behind the layer: statuses are in trailers, and a refusal is a status too.

use std::{
    convert::Infallible,
    net::Ipv4Addr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::{Buf, BufMut, Bytes};
use http::{Request, Response};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tonic::{
    Code, Status,
    body::Body,
    client::Grpc as Client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::{Grpc, NamedService, UnaryService},
    transport::{Channel, Server},
};
use tower::Service;
use tower_idempotency::{
    IdempotencyLayer, MemoryStore, Policy, Rule, Scope,
    store::StoreErrorKind,
    test_util::{Faults, FaultyStore},
};
use tower_idempotency_test_support::{Http2Client, Runs};

/// Messages are their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// `Payments.Pay`: a message `fail N` ends with status N, one that is `hold` waits for the test, and
/// every other is answered.
#[derive(Clone, Debug, Default)]
struct Payments {
    runs: Runs,
    go: Arc<Mutex<Option<Arc<Semaphore>>>>,
}

impl NamedService for Payments {
    const NAME: &'static str = "Payments";
}

type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl UnaryService<Bytes> for Payments {
    type Response = Bytes;
    type Future = Answering<tonic::Response<Bytes>, Status>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let run = self.runs.add();
        let go = self.go.lock().unwrap().clone();
        Box::pin(async move {
            let message = String::from_utf8_lossy(request.get_ref()).into_owned();
            if let Some(code) = message.strip_prefix("fail ") {
                let code = Code::from(code.parse::<i32>().unwrap());
                let mut status = Status::new(code, format!("run {run}"));
                status.metadata_mut().insert("x-reason", "because".parse().unwrap());
                return Err(status);
            }
            if let Some(go) = go {
                go.acquire().await.expect("it is never closed").forget();
            }
            let mut response = tonic::Response::new(Bytes::from(format!("run {run}: {message}")));
            response.metadata_mut().insert("x-head", "first".parse().unwrap());
            Ok(response)
        })
    }
}

impl<B> Service<Request<B>> for Payments
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<crate::BoxError> + Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answering<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        let late = request.uri().path().ends_with("/Late");
        Box::pin(async move {
            let response = Grpc::new(Plain).unary(service, request).await;
            // tonic says an error in the head; other servers say it after the head.
            Ok(if late { in_trailers(response) } else { response })
        })
    }
}

fn in_trailers(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if !head.headers.contains_key("grpc-status") {
        return Response::from_parts(head, body);
    }
    let content_type = head.headers.remove("content-type").unwrap();
    let trailers = std::mem::take(&mut head.headers);
    head.headers.insert("content-type", content_type);
    let empty = http_body_util::Empty::<Bytes>::new();
    let body = http_body_util::BodyExt::with_trailers(empty, async { Some(Ok(trailers)) });
    Response::from_parts(head, Body::new(body))
}

struct Served {
    client: Client<Channel>,
    payments: Payments,
    faults: Faults,
    address: std::net::SocketAddr,
    serving: JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Served {
    async fn start(policy: Policy) -> Self {
        let store = FaultyStore::new(MemoryStore::new());
        let faults = store.faults();
        let layer = IdempotencyLayer::new(store, Rule::new("pay", policy));
        let payments = Payments::default();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Server::builder().layer(layer).add_service(payments.clone());
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
        let serving = tokio::spawn(async move {
            router.serve_with_incoming(incoming).await.expect("it has no end of its own");
        });
        let channel = Channel::from_shared(format!("http://{address}")).unwrap();
        let client = Client::new(channel.connect().await.expect("it serves"));
        Self { client, payments, faults, address, serving }
    }

    async fn ask(
        &self,
        method: &'static str,
        key: Option<&str>,
        message: &str,
    ) -> Result<tonic::Response<Bytes>, Status> {
        let mut request = tonic::Request::new(Bytes::from(message.to_owned()));
        if let Some(key) = key {
            request.metadata_mut().insert("idempotency-key", key.parse().unwrap());
        }
        let mut client = self.client.clone();
        client.ready().await.expect("the server is there");
        client.unary(request, http::uri::PathAndQuery::from_static(method), Plain).await
    }

    async fn pay(&self, key: &str, message: &str) -> Result<tonic::Response<Bytes>, Status> {
        self.ask("/Payments/Pay", Some(key), message).await
    }

    fn runs(&self) -> usize {
        self.payments.runs.count()
    }
}

fn api() -> Policy {
    Policy::api(Scope::everyone())
}

#[tokio::test]
async fn a_call_runs_once_and_is_replayed() {
    let served = Served::start(api()).await;
    for delivery in 0..3 {
        let response = served.pay("k", "10 yuan").await.expect("paid");
        assert_eq!(response.get_ref(), "run 1: 10 yuan");
        assert_eq!(response.metadata().get("x-head").unwrap(), "first");
        assert_eq!(response.metadata().contains_key("idempotent-replayed"), delivery > 0);
    }
    assert_eq!(served.runs(), 1);
    assert_eq!(served.pay("other", "10 yuan").await.expect("paid").get_ref(), "run 2: 10 yuan");
}

#[tokio::test]
async fn a_replay_has_the_status_in_its_trailers() {
    let served = Served::start(api()).await;
    let client = Http2Client::connect(served.address).await;
    for delivery in 0..2 {
        let request = Request::post("/Payments/Pay")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("idempotency-key", "k")
            .body(Bytes::from_static(b"\0\0\0\0\x02hi"))
            .unwrap();
        let answer = client.send(request).await;
        assert_eq!(answer.headers["content-type"], "application/grpc");
        assert_eq!(answer.headers.contains_key("idempotent-replayed"), delivery > 0);
        assert_eq!(&answer.body[..], b"\0\0\0\0\x09run 1: hi");
        let trailers = answer.trailers.expect("its status");
        assert_eq!(trailers["grpc-status"], "0");
    }
    assert_eq!(served.runs(), 1);
}

const METHODS: [&str; 2] = ["/Payments/Pay", "/Payments/Late"];

#[tokio::test]
async fn statuses_that_are_final_are_kept() {
    for method in METHODS {
        for code in [3, 5, 6, 9, 11] {
            let served = Served::start(api()).await;
            for _ in 0..2 {
                let message = format!("fail {code}");
                let status = served.ask(method, Some("k"), &message).await.unwrap_err();
                assert_eq!((status.code() as i32, status.message()), (code, "run 1"));
                assert_eq!(status.metadata().get("x-reason").unwrap(), "because");
            }
            assert_eq!(served.runs(), 1, "{method} {code}");
        }
    }
}

#[tokio::test]
async fn statuses_that_say_it_did_not_happen_are_released() {
    for method in METHODS {
        for code in [7, 8, 10, 14, 16] {
            let served = Served::start(api()).await;
            for run in 1..=2 {
                let message = format!("fail {code}");
                let status = served.ask(method, Some("k"), &message).await.unwrap_err();
                assert_eq!(status.code() as i32, code);
                assert_eq!(status.message(), format!("run {run}"));
            }
            assert_eq!(served.runs(), 2, "{method} {code}");
        }
    }
}

#[tokio::test]
async fn statuses_that_do_not_say_leave_the_call_abandoned() {
    for method in METHODS {
        for code in [1, 2, 4, 12, 13, 15] {
            let served = Served::start(api()).await;
            let message = format!("fail {code}");
            let first = served.ask(method, Some("k"), &message).await.unwrap_err();
            assert_eq!((first.code() as i32, first.message()), (code, "run 1"));
            let second = served.ask(method, Some("k"), &message).await.unwrap_err();
            assert_eq!(second.code(), Code::FailedPrecondition);
            assert!(second.message().starts_with("outcome-unknown: "), "{second:?}");
            assert_eq!(served.runs(), 1, "{method} {code}");
        }
    }
}

#[tokio::test]
async fn a_refusal_is_a_status() {
    let served = Served::start(api()).await;
    let missing = served.ask("/Payments/Pay", None, "10 yuan").await.unwrap_err();
    assert_eq!(missing.code(), Code::InvalidArgument);
    assert!(missing.message().starts_with("identity-missing: "), "{missing:?}");

    served.pay("k", "10 yuan").await.expect("paid");
    let mismatch = served.pay("k", "20 yuan").await.unwrap_err();
    assert_eq!(mismatch.code(), Code::InvalidArgument);
    assert!(mismatch.message().starts_with("mismatch: "), "{mismatch:?}");
    assert_eq!(served.runs(), 1);
}

#[tokio::test]
async fn a_call_in_progress_is_aborted_with_a_time_to_come_again() {
    let served = Served::start(api()).await;
    let go = Arc::new(Semaphore::new(0));
    *served.payments.go.lock().unwrap() = Some(go.clone());
    let between = async {
        served.payments.runs.wait_for(1).await;
        let second = served.pay("k", "10 yuan").await.unwrap_err();
        go.add_permits(1);
        second
    };
    let (first, second) = tokio::join!(served.pay("k", "10 yuan"), between);
    assert_eq!(second.code(), Code::Aborted);
    assert!(second.message().starts_with("in-progress: "), "{second:?}");
    assert_eq!(second.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    assert_eq!(first.expect("paid").get_ref(), "run 1: 10 yuan");
    assert_eq!(served.runs(), 1);
}

#[tokio::test]
async fn without_a_store_a_call_is_unavailable() {
    let served = Served::start(api()).await;
    served.faults.down(StoreErrorKind::Unreachable);
    let status = served.pay("k", "10 yuan").await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().starts_with("store-unavailable: "), "{status:?}");
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "1000");
    assert_eq!(served.runs(), 0);
}

/// A kept head without a status would be no answer to a gRPC client.
#[tokio::test]
async fn an_answer_too_large_is_sent_and_then_refused_and_never_run_again() {
    let webhook = Policy::webhook(tower_idempotency::header("idempotency-key"));
    for policy in [api(), webhook] {
        let served = Served::start(policy.answer_limit(8)).await;
        let first = served.pay("k", "10 yuan").await.expect("paid");
        assert_eq!(first.get_ref(), "run 1: 10 yuan");
        let second = served.pay("k", "10 yuan").await.unwrap_err();
        assert_eq!(second.code(), Code::FailedPrecondition, "{second:?}");
        assert!(second.message().starts_with("answer-not-kept: "), "{second:?}");
        assert_eq!(served.runs(), 1);
    }
}
