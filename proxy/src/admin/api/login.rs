//! Who asks: `whoami`, `login`, `logout`.

use super::{json, json_answer, with_cookie, ApiError, Given};
use crate::admin::caller::{self, Caller};
use crate::admin::http::{self, Answer};
use crate::admin::logins::{cookie_name, LASTS};
use hyper::StatusCode;
use serde_json::{json, Value};

/// Bytes of a user's name and of a password.
const TEXT_BYTES_MAX: usize = 4_096;

/// Answers also where a login is needed: the page asks this first.
pub(in crate::admin) fn who_am_i(given: &Given<'_>) -> Result<Value, ApiError> {
    match given.caller() {
        Ok(caller) => Ok(described(&caller)),
        Err(error) if error.status == StatusCode::UNAUTHORIZED => Ok(json!({
            "user": null,
            "login_needed": true,
            "logged_in": false,
            "may": { "force_release": false, "close_session": false, "transfer": false, "audit": false },
            "node": given.admin.server.node,
            "version": env!("CARGO_PKG_VERSION"),
        })),
        Err(error) => Err(error),
    }
}

fn described(caller: &Caller) -> Value {
    json!({
        "user": json::shown(&caller.user.name),
        "login_needed": false,
        "logged_in": caller.login.is_some(),
        "may": {
            "force_release": caller.may_run(&[b"LOCK.FORCERELEASE", b"x"]),
            "close_session": caller.may_run(&[b"LOCK.SESSION", b"CLOSE", b"x"]),
            "transfer": caller.may_run(&[b"LOCK.CLUSTER", b"TRANSFER", b"1"]),
            "audit": caller.may_run(&[b"ACL", b"LOG"]),
        },
        "node": caller.admin.server.node,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

/// `{user, password}`: as `AUTH`, with the same delays for who guesses.
pub(in crate::admin) async fn log_in(given: &Given<'_>) -> Result<Answer, ApiError> {
    let text = |name: &str| {
        let text = given.body.get(name).and_then(Value::as_str).filter(|text| text.len() <= TEXT_BYTES_MAX);
        text.ok_or_else(|| ApiError::bad("send {\"user\":\"…\",\"password\":\"…\"}"))
    };
    let (user, password) = (text("user")?.as_bytes(), text("password")?.as_bytes());
    let user = caller::log_in(given.admin, given.peer, user, password).await?;
    let token = given.admin.logins.add(user);
    let token = token.ok_or_else(|| ApiError::unavailable("no random bytes for a login; retry"))?;
    let mut headers = hyper::HeaderMap::new();
    let name = cookie_name(given.admin, given.peer);
    if let Ok(cookie) = hyper::header::HeaderValue::from_str(&format!("{name}={token}")) {
        headers.insert(hyper::header::COOKIE, cookie);
    }
    let caller = Caller::of(given.admin, given.peer, &headers)?;
    let answer = json_answer(StatusCode::OK, &described(&caller));
    Ok(with_cookie(answer, &cookie_line(given, &token, LASTS.as_secs())))
}

pub(in crate::admin) fn log_out(given: &Given<'_>) -> Answer {
    if let Some(token) = http::cookie(given.headers, &cookie_name(given.admin, given.peer)) {
        given.admin.logins.end(token);
    }
    with_cookie(json_answer(StatusCode::OK, &json!({ "ok": true })), &cookie_line(given, "", 0))
}

fn cookie_line(given: &Given<'_>, token: &str, seconds: u64) -> String {
    let secure = if given.admin.is_tls { "; Secure" } else { "" };
    let name = cookie_name(given.admin, given.peer);
    format!("{name}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}")
}
