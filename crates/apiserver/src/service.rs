//! One request, from its head to its answer. Knows HTTP; knows nothing of sockets.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body as HttpBody, Frame};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::auth::{Authenticator, User};
use crate::body::{self, BODY_BYTES_MAX};
use crate::catalog::Catalog;
use crate::core::Core;
use crate::discovery;
use crate::negotiate::{self, Encoding};
use crate::object;
use crate::openapi::PROTOBUF_MEDIA_TYPES;
use crate::options;
use crate::render;
use crate::request::{Query, ResourcePath, Route, Verb, route};
use crate::status::ApiError;
use crate::table::IncludeObject;
use crate::verbs::{Call, FieldValidation, ListParameters, WatchParameters, parse_version};

/// The body of every answer.
pub type AnswerBody = BoxBody<Bytes, Infallible>;
pub type Answer = Response<AnswerBody>;

/// A request that is not a watch is answered within this time, one way or the other.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A client that sends its body slower than this is not waited for.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests at work at the same time; more wait a moment, then are told to come back. The real
/// server's default for reads; a write here is a few hundred microseconds of work.
const REQUESTS_IN_FLIGHT_MAX: usize = 400;
const IN_FLIGHT_WAIT: Duration = Duration::from_secs(5);

/// The user whom TLS already knows, as an extension of the request.
#[derive(Clone, Debug)]
pub struct CertificateUser(pub User);

#[derive(Clone)]
pub struct ApiService {
    core: Arc<Core>,
    authenticator: Authenticator,
    in_flight: Arc<Semaphore>,
    ready: Arc<AtomicBool>,
}

impl ApiService {
    pub fn new(core: Arc<Core>, authenticator: Authenticator) -> Self {
        Self {
            core,
            authenticator,
            in_flight: Arc::new(Semaphore::new(REQUESTS_IN_FLIGHT_MAX)),
            ready: Arc::new(AtomicBool::new(false)),
        }
    }

    /// From now on `/readyz` says yes.
    pub fn set_ready(&self) {
        self.ready.store(true, Ordering::Release);
    }

    /// Server-side apply without a socket, taking ownership: for what the process itself provides.
    pub async fn apply(&self, object: &Value, manager: &str) -> Result<Value, ApiError> {
        let api_version = object["apiVersion"].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().unwrap_or_default();
        let resource = self
            .core
            .catalog()
            .of_kind(api_version, kind)
            .ok_or_else(ApiError::no_such_path)?;
        let call = Call {
            core: Arc::clone(&self.core),
            resource,
            namespace: object::namespace(object).map(str::to_owned),
            name: Some(object::name(object).to_owned()),
            subresource: None,
            manager: manager.to_owned(),
            dry_run: false,
            field_validation: FieldValidation::Strict,
            force: true,
        };
        let outcome = call
            .patch(negotiate::PatchType::Apply, object.to_string().as_bytes())
            .await?;
        Ok(outcome.object)
    }

    /// Answers a request. Never fails and never panics: whatever happens becomes a `Status`.
    pub async fn handle<B>(&self, request: Request<B>) -> Answer
    where
        B: HttpBody<Data = Bytes> + Send,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let (head, body) = request.into_parts();
        let query = Query::parse(head.uri.query());
        let started = Instant::now();
        let mut label = Label {
            verb: "get",
            resource: String::new(),
            long: false,
        };
        let work = self.answer(&head, &query, body, &mut label);
        let result = match AssertUnwindSafe(work).catch_unwind().await {
            Ok(result) => result,
            Err(_) => {
                tracing::error!(http.method = %head.method, http.path = head.uri.path(), "a request made the server panic");
                Err(ApiError::internal(
                    "this is a defect of the server; the request did not disturb others",
                ))
            }
        };
        let answer = result.unwrap_or_else(|error| render::failure(&error));
        let took = (!label.long).then(|| started.elapsed());
        self.core
            .metrics
            .answered(label.verb, &label.resource, answer.status().as_u16(), took);
        answer
    }

    async fn answer<B>(
        &self,
        head: &http::request::Parts,
        query: &Query,
        body: B,
        label: &mut Label,
    ) -> Result<Answer, ApiError>
    where
        B: HttpBody<Data = Bytes> + Send,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let target = route(head.uri.path());
        if let Some(answer) = self.public(&target) {
            return Ok(answer);
        }
        let by_certificate = head.extensions.get::<CertificateUser>().map(|user| &user.0);
        self.authenticator
            .user(by_certificate, &head.headers)
            .ok_or_else(ApiError::unauthorized)?;
        match target {
            Route::Resource(path) => self.resource(head, query, body, path, label).await,
            other => {
                if head.method != http::Method::GET && head.method != http::Method::HEAD {
                    return Err(ApiError::method_not_allowed());
                }
                self.document(&other, &head.headers)
            }
        }
    }

    /// What anybody may see: whether the server is well, and which it is.
    fn public(&self, route: &Route) -> Option<Answer> {
        match route {
            Route::Version => Some(render::json(StatusCode::OK, &discovery::version())),
            Route::Health(check) => {
                let well = check != "readyz" || self.ready.load(Ordering::Acquire);
                let (code, text) = if well {
                    (StatusCode::OK, "ok")
                } else {
                    (StatusCode::SERVICE_UNAVAILABLE, "starting")
                };
                Some(render::text(code, "text/plain; charset=utf-8", text))
            }
            _ => None,
        }
    }

    fn document(&self, route: &Route, headers: &HeaderMap) -> Result<Answer, ApiError> {
        let catalog = self.core.catalog();
        let found = match route {
            Route::Root => Some(discovery::paths(&catalog)),
            Route::Groups { legacy } if negotiate::accepts_aggregated_discovery(headers) => {
                let document = discovery::aggregated(&catalog, *legacy);
                return Ok(render::with_type(
                    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                    document.to_string(),
                ));
            }
            Route::Groups { legacy: true } => Some(discovery::legacy_versions("")),
            Route::Groups { legacy: false } => Some(discovery::groups(&catalog)),
            Route::Group(group) => discovery::group(&catalog, group),
            Route::GroupVersion { group, version } => {
                discovery::resources(&catalog, group, version)
            }
            Route::OpenApiV2 => return Ok(openapi_v2(&catalog, headers)),
            Route::OpenApiV3Index => {
                return Ok(render::with_type(
                    "application/json",
                    catalog.documents().v3_index().to_vec(),
                ));
            }
            Route::OpenApiV3 { group, version } => {
                let path = if group.is_empty() {
                    format!("api/{version}")
                } else {
                    format!("apis/{group}/{version}")
                };
                let document = catalog
                    .documents()
                    .v3(&path)
                    .ok_or_else(ApiError::no_such_path)?;
                return Ok(render::with_type("application/json", document.to_vec()));
            }
            Route::Metrics => {
                let text = self
                    .core
                    .metrics
                    .render(self.core.store.current_revision().0);
                return Ok(render::text(
                    StatusCode::OK,
                    "application/openmetrics-text; version=1.0.0; charset=utf-8",
                    text,
                ));
            }
            Route::Resource(_) | Route::Version | Route::Health(_) | Route::Unknown => None,
        };
        found
            .map(|document| render::json(StatusCode::OK, &document))
            .ok_or_else(ApiError::no_such_path)
    }

    async fn resource<B>(
        &self,
        head: &http::request::Parts,
        query: &Query,
        body: B,
        path: ResourcePath,
        label: &mut Label,
    ) -> Result<Answer, ApiError>
    where
        B: HttpBody<Data = Bytes> + Send,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let verb = Verb::of(&head.method, &path, query)?;
        let call = self.call(head, query, path, verb)?;
        label.verb = verb.name();
        label.resource = call.resource.qualified_name();
        if verb == Verb::Watch {
            label.long = true;
            return watch(&call, query, &head.headers);
        }
        let _turn = timeout(IN_FLIGHT_WAIT, self.in_flight.acquire())
            .await
            .map_err(|_| {
                ApiError::too_many_requests("too many requests at once; please try again later")
            })?;
        let body = read_body(body).await?;
        timeout(
            REQUEST_TIMEOUT,
            perform(&call, verb, query, &head.headers, &body),
        )
        .await
        .map_err(|_| {
            ApiError::timeout("the request did not finish in time; it may still have an effect")
        })?
    }

    /// Puts the pieces of a request together, refusing what cannot mean anything.
    fn call(
        &self,
        head: &http::request::Parts,
        query: &Query,
        path: ResourcePath,
        verb: Verb,
    ) -> Result<Call, ApiError> {
        let resource = self
            .core
            .catalog()
            .find(&path.group, &path.version, &path.plural)
            .ok_or_else(ApiError::no_such_path)?;
        if path.namespace.is_some() && !resource.namespaced {
            return Err(ApiError::no_such_path());
        }
        if resource.namespaced && path.namespace.is_none() {
            // Over all namespaces one can list and watch; everything else is in one of them.
            match verb {
                Verb::List | Verb::Watch if path.name.is_none() => {}
                Verb::Create | Verb::DeleteCollection => return Err(ApiError::method_not_allowed()),
                _ => return Err(ApiError::no_such_path()),
            }
        }
        if let Some(subresource) = &path.subresource {
            let have = &resource.subresources;
            let allowed: &[Verb] = match subresource.as_str() {
                "status" if have.status => &[Verb::Get, Verb::Update, Verb::Patch],
                "scale" if have.scale.is_some() => &[Verb::Get, Verb::Update, Verb::Patch],
                "binding" if have.binding => &[Verb::Create],
                "eviction" if have.eviction => &[Verb::Create],
                "finalize" if have.finalize => &[Verb::Update],
                _ => return Err(ApiError::no_such_path()),
            };
            if !allowed.contains(&verb) {
                return Err(ApiError::method_not_allowed());
            }
        }
        Ok(Call {
            core: Arc::clone(&self.core),
            resource,
            namespace: path.namespace,
            name: path.name,
            subresource: path.subresource,
            manager: options::field_manager(query, &head.headers),
            // Checked with the other options, once it is known what they belong to.
            dry_run: query.dry_run().unwrap_or_default(),
            field_validation: options::field_validation(query).unwrap_or(FieldValidation::Warn),
            force: query.flag("force")?,
        })
    }
}

/// How a request is counted.
struct Label {
    verb: &'static str,
    resource: String,
    /// Watches last as long as clients like; their duration says nothing about the server.
    long: bool,
}

/// kubectl asks for protobuf, and older ones for nothing else.
fn openapi_v2(catalog: &Catalog, headers: &HeaderMap) -> Answer {
    let accept = headers
        .get(ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .unwrap_or_default();
    let wants_protobuf = PROTOBUF_MEDIA_TYPES
        .iter()
        .any(|media_type| accept.contains(media_type));
    let documents = catalog.documents();
    if wants_protobuf {
        // By the valid name: clients that ask for it by the other one refuse to read that in an answer.
        render::with_type(PROTOBUF_MEDIA_TYPES[0], documents.v2_protobuf().to_vec())
    } else {
        render::with_type("application/json", documents.v2_json().to_vec())
    }
}

async fn perform(
    call: &Call,
    verb: Verb,
    query: &Query,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Answer, ApiError> {
    let accept = negotiate::accept(headers)?;
    let include = IncludeObject::parse(query.get("includeObject"))?;
    let outcome = match verb {
        Verb::Get => {
            // The newest state is at least as new as any version that exists.
            parse_version(query)?;
            call.get()?
        }
        Verb::List => {
            let parameters = ListParameters::parse(query, &call.resource)?;
            return Ok(render::list(
                call,
                &call.list(&parameters)?,
                accept,
                include,
            ));
        }
        Verb::Create => {
            options::check("CreateOptions", query, None)?;
            call.create(body::parse(headers, body)?).await?
        }
        Verb::Update => {
            options::check("UpdateOptions", query, None)?;
            call.update(body::parse(headers, body)?).await?
        }
        Verb::Patch => {
            let patch_type = negotiate::patch_type(
                headers,
                call.resource.origin == crate::catalog::Origin::BuiltIn,
            )?;
            let apply = patch_type == negotiate::PatchType::Apply;
            options::check("PatchOptions", query, Some(apply))?;
            call.patch(patch_type, body).await?
        }
        Verb::Delete => call.delete(&options::delete(query, headers, body)?).await?,
        Verb::DeleteCollection => {
            let parameters = ListParameters::parse(query, &call.resource)?;
            call.delete_collection(&parameters, &options::delete(query, headers, body)?)
                .await?
        }
        Verb::Watch => return Err(ApiError::method_not_allowed()),
    };
    Ok(render::outcome(call, outcome, accept, include))
}

fn watch(call: &Call, query: &Query, headers: &HeaderMap) -> Result<Answer, ApiError> {
    let accept = negotiate::accept(headers)?;
    if accept.encoding != Encoding::Json {
        return Err(ApiError::not_acceptable("application/json"));
    }
    let parameters = WatchParameters::parse(query, call)?;
    let lines = call.watch(parameters, accept.shape)?;
    let frames = lines.map(|line| Ok::<_, Infallible>(Frame::data(line)));
    let mut answer = Response::new(BodyExt::boxed(StreamBody::new(frames)));
    answer.headers_mut().insert(
        CONTENT_TYPE,
        http::HeaderValue::from_static("application/json"),
    );
    Ok(answer)
}

async fn read_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    timeout(BODY_TIMEOUT, collect_body(body))
        .await
        .unwrap_or_else(|_| Err(ApiError::timeout("the body did not arrive in time")))
}

/// What is too large is not kept, but it is read for a while: a client that is still sending would
/// otherwise see its connection break instead of the answer.
async fn collect_body<B>(body: B) -> Result<Bytes, ApiError>
where
    B: HttpBody<Data = Bytes> + Send,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    const DISCARDED_BYTES_MAX: usize = 64 * 1024 * 1024;
    let mut body = std::pin::pin!(body);
    let mut kept = Vec::new();
    let mut received = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("the body ended early: {error}")))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        received += data.len();
        if received <= BODY_BYTES_MAX {
            kept.extend_from_slice(&data);
        } else if received > DISCARDED_BYTES_MAX {
            break;
        } else {
            kept = Vec::new();
        }
    }
    if received > BODY_BYTES_MAX {
        return Err(ApiError::too_large(BODY_BYTES_MAX));
    }
    Ok(kept.into())
}

/// In-process clients skip the socket and TLS, and with them the question who they are.
impl<B> tower::Service<Request<B>> for ApiService
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = futures::future::BoxFuture<'static, Result<Answer, Infallible>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let service = self.clone();
        request
            .extensions_mut()
            .insert(CertificateUser(User::new("lariat:in-process")));
        Box::pin(async move { Ok(service.handle(request).await) })
    }
}

/// A body that is there as a whole.
pub(crate) fn full(bytes: impl Into<Bytes>) -> AnswerBody {
    Full::new(bytes.into()).boxed()
}
