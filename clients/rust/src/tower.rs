//! Fences in HTTP: a [`tower`](https://docs.rs/tower) layer for the service that owns the resource.
//!
//! The holder of a lock sends its fence in the header `Redfence-Fence`. The layer passes a request on if its fence is not lower than the
//! highest seen for the resource, and answers 412 Precondition Failed if it is: the sender lost its lock.
//!
//! | request | answer |
//! | --- | --- |
//! | the fence is not stale | the service's own |
//! | the fence is stale | 412 |
//! | no header, and the resource needs one | 428 |
//! | not a fence | 400 |
//! | the check cannot be made now | 503 |
//!
//! Check and work are two steps: a request that pauses in between can be late. Where the service keeps its data in a database, let the write
//! itself compare the fence as well ([`crate::postgres`]).

use crate::client::Client;
use crate::error::Error;
use crate::FENCE_HEADER;
use futures_util::future::BoxFuture;
use http::{Request, Response, StatusCode};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_layer::Layer;
use tower_service::Service;

/// Who remembers the highest fence of each resource.
pub trait Marks: Clone + Send + Sync + 'static {
    /// Whether the fence is not lower than the highest seen, which rises to it.
    fn check(&self, resource: Vec<u8>, fence: i64) -> BoxFuture<'static, Result<bool, Error>>;
}

/// The server itself, by `FENCE.CHECK`.
impl Marks for Client {
    fn check(&self, resource: Vec<u8>, fence: i64) -> BoxFuture<'static, Result<bool, Error>> {
        let fenced = self.fenced(resource, fence);
        Box::pin(async move { fenced.check().await })
    }
}

type Resource = Arc<dyn Fn(&http::request::Parts) -> Option<Vec<u8>> + Send + Sync>;

/// The layer. `resource` names what a request writes to; `None` lets it pass unchecked (a read, say).
#[derive(Clone)]
pub struct FenceLayer<M> {
    marks: M,
    resource: Resource,
}

impl<M> std::fmt::Debug for FenceLayer<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FenceLayer")
    }
}

impl<M: Marks> FenceLayer<M> {
    /// A layer over these marks.
    pub fn new(
        marks: M,
        resource: impl Fn(&http::request::Parts) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> FenceLayer<M> {
        FenceLayer { marks, resource: Arc::new(resource) }
    }
}

impl<M: Clone, S> Layer<S> for FenceLayer<M> {
    type Service = FenceService<M, S>;

    fn layer(&self, inner: S) -> FenceService<M, S> {
        FenceService { layer: self.clone(), inner }
    }
}

/// A service behind [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<M, S> {
    layer: FenceLayer<M>,
    inner: S,
}

impl<M, S, B, R> Service<Request<B>> for FenceService<M, S>
where
    M: Marks,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
    R: Default + Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        let resource = (self.layer.resource)(&parts);
        let fence = parts
            .headers
            .get(FENCE_HEADER)
            .map(|fence| fence.to_str().ok().and_then(|text| text.parse().ok()));
        let request = Request::from_parts(parts, body);
        // The service that was ready is the one to call; its clone takes its place.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Some(resource) = resource else { return Box::pin(inner.call(request)) };
        let refused = match fence {
            None => StatusCode::PRECONDITION_REQUIRED,
            Some(Some(fence)) if fence > 0 => {
                let check = self.layer.marks.check(resource, fence);
                return Box::pin(async move {
                    match check.await {
                        Ok(true) => inner.call(request).await,
                        Ok(false) => Ok(empty(StatusCode::PRECONDITION_FAILED)),
                        // A fence from the future, or none at all.
                        Err(Error::Server { .. } | Error::Invalid { .. }) => {
                            Ok(empty(StatusCode::BAD_REQUEST))
                        }
                        Err(_) => Ok(empty(StatusCode::SERVICE_UNAVAILABLE)),
                    }
                });
            }
            Some(_) => StatusCode::BAD_REQUEST,
        };
        Box::pin(async move { Ok(empty(refused)) })
    }
}

fn empty<R: Default>(status: StatusCode) -> Response<R> {
    let mut response = Response::new(R::default());
    *response.status_mut() = status;
    response
}
