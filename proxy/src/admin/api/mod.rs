//! `/api/v1/`: what the dashboard shows and does, as JSON. `docs/api.md` describes it; a test compares its list of paths with this one.
//!
//! # Layout
//!
//! - [`overview`], [`locks`], [`lock`], [`sessions`], [`contention`], [`cluster`], [`routes`], [`audit`]: what is read
//! - [`actions`]: what changes something; [`login`]: who asks
//! - [`json`]: names and replies as JSON; [`error`]: what an error is answered as

pub(super) mod actions;
pub(super) mod audit;
pub(super) mod cluster;
pub(super) mod contention;
pub(super) mod error;
pub(super) mod json;
pub(super) mod lock;
pub(super) mod locks;
pub(super) mod login;
pub(super) mod overview;
pub(super) mod routes;
pub(super) mod sessions;

pub(super) use error::ApiError;

use super::caller::Caller;
use super::http::{self, Answer, BadBody, Words};
use super::turns::{TurnKind, Who};
use super::{Admin, Answering, Peer, Stage, ANSWERED, ANSWER_WITHIN, LIVE};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use serde_json::Value;
use std::sync::Arc;

/// What a path stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    WhoAmI,
    LogIn,
    LogOut,
    Overview,
    Locks,
    Lock,
    LockByName,
    ForceRelease,
    ForceReleaseByName,
    Sessions,
    CloseSession,
    Contention,
    Events,
    Cluster,
    Transfer,
    Routes,
    Audit,
}

impl Endpoint {
    /// In which lane its requests wait for their turn.
    fn turn_kind(self, words: &Words) -> TurnKind {
        match self {
            Endpoint::LogIn => TurnKind::Login,
            Endpoint::Locks if locks::is_sorted(words) => TurnKind::SortedSearch,
            Endpoint::Locks => TurnKind::Search,
            Endpoint::ForceRelease
            | Endpoint::ForceReleaseByName
            | Endpoint::CloseSession
            | Endpoint::Transfer => TurnKind::Action,
            Endpoint::WhoAmI
            | Endpoint::LogOut
            | Endpoint::Overview
            | Endpoint::Lock
            | Endpoint::LockByName
            | Endpoint::Sessions
            | Endpoint::Contention
            | Endpoint::Events
            | Endpoint::Cluster
            | Endpoint::Routes
            | Endpoint::Audit => TurnKind::Read,
        }
    }
}

/// All paths. A part in braces is any text.
const PATHS: &[(&str, &str, Endpoint)] = &[
    ("GET", "/api/v1/whoami", Endpoint::WhoAmI),
    ("POST", "/api/v1/login", Endpoint::LogIn),
    ("POST", "/api/v1/logout", Endpoint::LogOut),
    ("GET", "/api/v1/overview", Endpoint::Overview),
    ("GET", "/api/v1/locks", Endpoint::Locks),
    ("GET", "/api/v1/locks/{key}", Endpoint::Lock),
    ("POST", "/api/v1/locks/{key}/force-release", Endpoint::ForceRelease),
    ("GET", "/api/v1/lock", Endpoint::LockByName),
    ("POST", "/api/v1/lock/force-release", Endpoint::ForceReleaseByName),
    ("GET", "/api/v1/sessions", Endpoint::Sessions),
    ("POST", "/api/v1/sessions/{id}/close", Endpoint::CloseSession),
    ("GET", "/api/v1/contention", Endpoint::Contention),
    ("GET", "/api/v1/events", Endpoint::Events),
    ("GET", "/api/v1/cluster", Endpoint::Cluster),
    ("POST", "/api/v1/cluster/transfer", Endpoint::Transfer),
    ("GET", "/api/v1/routes", Endpoint::Routes),
    ("GET", "/api/v1/audit", Endpoint::Audit),
];

/// The endpoint, and what stands for the part in braces, decoded.
fn find(method: &Method, path: &str) -> Result<(Endpoint, Vec<u8>), ApiError> {
    let mut is_known = false;
    for (known_method, pattern, endpoint) in PATHS {
        let Some(word) = word_in(pattern, path) else { continue };
        if method.as_str() == *known_method {
            let word = http::percent_decoded(word, false)
                .ok_or_else(|| ApiError::bad("the path is not well-formed"))?;
            return Ok((*endpoint, word));
        }
        is_known = true;
    }
    match is_known {
        true => Err(ApiError::method()),
        false => Err(ApiError::not_found("no such path; docs/api.md lists them")),
    }
}

/// What stands for the part in braces; empty where the pattern has none. `None`: another path.
fn word_in<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, rest)) = pattern.split_once('{') else { return (pattern == path).then_some("") };
    let (_, after) = rest.split_once('}')?;
    let word = path.strip_prefix(before)?.strip_suffix(after)?;
    (!word.is_empty() && !word.contains('/')).then_some(word)
}

/// Answers a request to the API: errors, too, are JSON.
pub(super) async fn answer(
    admin: &Arc<Admin>,
    peer: &Arc<Peer>,
    stage: &Arc<Stage>,
    request: Request<Incoming>,
) -> Answer {
    answered(admin, peer, stage, request).await.unwrap_or_else(|error| error.answer())
}

async fn answered(
    admin: &Arc<Admin>,
    peer: &Arc<Peer>,
    stage: &Arc<Stage>,
    request: Request<Incoming>,
) -> Result<Answer, ApiError> {
    let (endpoint, word) = find(request.method(), request.uri().path())?;
    // Also what only reads: it costs something, and no page of another site needs it.
    if http::is_fetched_from_elsewhere(request.headers()) {
        return Err(ApiError::other_origin());
    }
    let words =
        Words::parse(request.uri().query()).ok_or_else(|| ApiError::bad("the query is not well-formed"))?;
    let (head, body) = request.into_parts();
    let body = match head.method == Method::POST {
        true => checked_body(admin, &head.headers, body).await?,
        false => Value::Null,
    };
    let kind = endpoint.turn_kind(&words);
    let user = match kind {
        TurnKind::Login => None,
        TurnKind::Read | TurnKind::Search | TurnKind::SortedSearch | TurnKind::Action => {
            Caller::of(admin, peer, &head.headers).ok().map(|caller| caller.user)
        }
    };
    let _turn = admin.turns.take(kind, Who::of(peer, user.as_deref())).await?;
    stage.set(ANSWERED);
    let answering = Answering(stage);
    let given = Given { admin, peer, stage, headers: &head.headers, word, words, body };
    let answer = tokio::time::timeout(ANSWER_WITHIN, run(endpoint, given)).await;
    let answer = answer.unwrap_or_else(|_| Err(ApiError::cut_off()));
    if endpoint == Endpoint::Events && answer.is_ok() {
        std::mem::forget(answering);
        stage.set(LIVE);
        return answer;
    }
    let full = || ApiError::unavailable("too many answers wait for their readers; retry");
    admin.answers.charge(answer?).await.ok_or_else(full)
}

/// The JSON of a `POST`, from this listener's own pages or from no page.
async fn checked_body(admin: &Admin, headers: &HeaderMap, body: Incoming) -> Result<Value, ApiError> {
    if !http::is_own_origin(headers, admin.is_tls) {
        return Err(ApiError::other_origin());
    }
    let content_type = http::header_text(headers, header::CONTENT_TYPE).unwrap_or_default();
    let kind = content_type.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case(http::JSON) {
        return Err(ApiError::content_type());
    }
    let bytes = http::read_body(body).await.map_err(|bad| match bad {
        BadBody::TooLarge => ApiError::too_large(),
        BadBody::Unfinished => ApiError::bad("the body did not come in time"),
    })?;
    match bytes.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&bytes).map_err(|_| ApiError::bad("the body is no JSON")),
    }
}

/// What a request brings.
pub(super) struct Given<'a> {
    pub(super) admin: &'a Arc<Admin>,
    pub(super) peer: &'a Arc<Peer>,
    pub(super) stage: &'a Arc<Stage>,
    pub(super) headers: &'a HeaderMap,
    /// The part of the path in braces.
    pub(super) word: Vec<u8>,
    pub(super) words: Words,
    pub(super) body: Value,
}

impl Given<'_> {
    pub(super) fn caller(&self) -> Result<Caller, ApiError> {
        Caller::of(self.admin, self.peer, self.headers)
    }

    /// The lock in the query. For names that cannot stand in a path: a browser takes dots alone for a folder, however they are encoded.
    fn name(&self) -> Result<&[u8], ApiError> {
        self.words.get("name").ok_or_else(|| ApiError::bad("name is missing: /api/v1/lock?name=…"))
    }
}

async fn run(endpoint: Endpoint, given: Given<'_>) -> Result<Answer, ApiError> {
    let value = match endpoint {
        Endpoint::WhoAmI => login::who_am_i(&given)?,
        Endpoint::LogIn => return login::log_in(&given).await,
        Endpoint::LogOut => return Ok(login::log_out(&given)),
        Endpoint::Events => return super::events::answer(&given),
        Endpoint::Overview => overview::overview(given.caller()?).await?,
        Endpoint::Locks => {
            let text = locks::list(given.caller()?, &given.words).await?;
            return Ok(text_answer(StatusCode::OK, text));
        }
        Endpoint::Lock => lock::one(given.caller()?, &given.word, &given.words).await?,
        Endpoint::LockByName => lock::one(given.caller()?, given.name()?, &given.words).await?,
        Endpoint::ForceReleaseByName => {
            actions::force_release(given.caller()?, given.name()?, &given.body).await?
        }
        Endpoint::Sessions => sessions::list(given.caller()?, &given.words).await?,
        Endpoint::Contention => contention::list(given.caller()?, &given.words).await?,
        Endpoint::Cluster => cluster::cluster(given.caller()?).await?,
        Endpoint::Routes => routes::routes(given.caller()?, &given.words).await?,
        Endpoint::Audit => audit::lines(&given.caller()?, &given.words)?,
        Endpoint::ForceRelease => actions::force_release(given.caller()?, &given.word, &given.body).await?,
        Endpoint::CloseSession => actions::close_session(given.caller()?, &given.word, &given.body).await?,
        Endpoint::Transfer => actions::transfer(given.caller()?, &given.body).await?,
    };
    Ok(json_answer(StatusCode::OK, &value))
}

pub(super) fn json_answer(status: StatusCode, value: &Value) -> Answer {
    text_answer(status, value.to_string())
}

/// The same with JSON that is text already.
fn text_answer(status: StatusCode, mut text: String) -> Answer {
    text.push('\n');
    http::whole(status, http::JSON, Bytes::from(text), http::NO_STORE)
}

/// The same with a cookie.
pub(super) fn with_cookie(mut answer: Answer, cookie: &str) -> Answer {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        answer.headers_mut().insert(header::SET_COOKIE, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn paths_are_found_with_their_words() {
        let found = |method: Method, path: &str| {
            find(&method, path).map(|(endpoint, word)| (endpoint, String::from_utf8(word).unwrap()))
        };
        assert_eq!(found(Method::GET, "/api/v1/locks").unwrap(), (Endpoint::Locks, String::new()));
        assert_eq!(found(Method::GET, "/api/v1/locks/a%2Fb").unwrap(), (Endpoint::Lock, "a/b".to_owned()));
        let force = found(Method::POST, "/api/v1/locks/x/force-release").unwrap();
        assert_eq!(force, (Endpoint::ForceRelease, "x".to_owned()));
        for (method, path) in [
            (Method::GET, "/api/v1/locks/"),
            (Method::GET, "/api/v1/locks/a/b"),
            (Method::GET, "/api/v1/locks/x/force-release"),
            (Method::DELETE, "/api/v1/locks"),
            (Method::GET, "/api/v1/locks/%zz"),
            (Method::GET, "/api/v2/locks"),
        ] {
            assert!(found(method, path).is_err(), "{path}");
        }
    }

    #[test]
    fn the_documentation_lists_every_path() {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/api.md")).unwrap();
        let headings = text.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
        let documented: BTreeSet<String> = headings.map(str::to_owned).collect();
        let known: BTreeSet<String> =
            PATHS.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
        assert_eq!(documented, known);
    }
}
