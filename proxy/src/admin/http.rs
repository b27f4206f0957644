//! HTTP on the admin listener: answers and their headers, and what is asked of a request before anything acts on it.
//!
//! Every answer carries a content security policy that allows this node's own files and nothing else. A page of another site can
//! neither read answers (no CORS) nor cause an action: a `POST` must be JSON, which a browser sends across sites only after asking,
//! its `Origin` must be this listener, and the cookie is `SameSite=Strict`.

use super::events::EventStream;
use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(super) type Answer = Response<Body>;

/// What is handed to the connection at once: the rest waits here, with its part of the budget, for the reader.
const PIECE_BYTES: usize = 16 << 10;

/// A whole body, or a stream of events.
#[derive(Debug)]
pub(super) enum Body {
    Whole {
        rest: Bytes,
        /// Given back when the last piece has gone.
        budget: Option<OwnedSemaphorePermit>,
    },
    Events(EventStream),
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Body::Whole { rest, .. } if rest.is_empty() => Poll::Ready(None),
            Body::Whole { rest, .. } => {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Body::Events(events) => Pin::new(events).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole { rest, .. } if rest.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole { rest, .. } => SizeHint::with_exact(rest.len() as u64),
            Body::Events(_) => SizeHint::default(),
        }
    }
}

/// Bytes of answers that wait for their readers, of all connections together.
#[derive(Debug)]
pub(super) struct AnswerBudget(Arc<Semaphore>);

/// A unit of the budget, and how many there are: 64 MiB. Answers below a unit are not counted: they fit into the connection's buffer.
const UNIT_BYTES: usize = 16 << 10;
const UNITS: usize = 4_096;
/// How long a made answer waits for room.
const ROOM_WITHIN: Duration = Duration::from_secs(2);

impl Default for AnswerBudget {
    fn default() -> AnswerBudget {
        AnswerBudget(Arc::new(Semaphore::new(UNITS)))
    }
}

impl AnswerBudget {
    /// Charges an answer. `None`: the readers of others leave no room.
    pub(super) async fn charge(&self, mut answer: Answer) -> Option<Answer> {
        if let Body::Whole { rest, budget } = answer.body_mut() {
            let units = rest.len() / UNIT_BYTES;
            if units > 0 {
                let units = u32::try_from(units.min(UNITS)).ok()?;
                let room = Arc::clone(&self.0).acquire_many_owned(units);
                *budget = Some(tokio::time::timeout(ROOM_WITHIN, room).await.ok()?.ok()?);
            }
        }
        Some(answer)
    }
}

/// Bytes of a request's body.
pub(super) const BODY_BYTES_MAX: usize = 64 << 10;
/// How long it may take to come.
const BODY_WITHIN: Duration = Duration::from_secs(5);

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
pub(super) const JSON: &str = "application/json";
pub(super) const NO_STORE: &str = "no-store";

/// An answer with a whole body.
pub(super) fn whole(
    status: StatusCode,
    content_type: &'static str,
    body: Bytes,
    cache: &'static str,
) -> Answer {
    let mut answer = Response::new(Body::Whole { rest: body, budget: None });
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(cache));
    protect(headers);
    answer
}

pub(super) fn text(status: StatusCode, body: &'static str) -> Answer {
    whole(status, "text/plain; charset=utf-8", body.into(), NO_STORE)
}

/// What every answer tells a browser.
pub(super) fn protect(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let own = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", own.clone());
    headers.insert("cross-origin-resource-policy", own);
}

/// Why a body was not taken.
#[derive(Debug)]
pub(super) enum BadBody {
    TooLarge,
    Unfinished,
}

pub(super) async fn read_body(body: hyper::body::Incoming) -> Result<Bytes, BadBody> {
    let read = Limited::new(body, BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_WITHIN, read).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(BadBody::TooLarge),
        Ok(Err(_)) | Err(_) => Err(BadBody::Unfinished),
    }
}

/// The text of a header, where it is one.
pub(super) fn header_text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The value of a cookie.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(have, _)| *have == name).map(|(_, value)| value)
}

/// Whether a name by which a browser came is this node's: one that another site's DNS cannot have pointed here. Addresses, names of
/// loopback and `own` names.
pub(super) fn is_own_host(host: &str, own: &[String]) -> bool {
    let name = without_port(host);
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let lower = bare.trim_end_matches('.').to_ascii_lowercase();
    bare.parse::<IpAddr>().is_ok()
        || lower == "localhost"
        || lower.ends_with(".localhost")
        || own.iter().any(|own| own.eq_ignore_ascii_case(&lower))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => {
            // The last part of a bare IPv6 address is no port.
            if name.contains(':') && !name.ends_with(']') {
                host
            } else {
                name
            }
        }
        Some(_) | None => host,
    }
}

/// Whether a browser says that a page of another site has asked.
pub(super) fn is_fetched_from_elsewhere(headers: &HeaderMap) -> bool {
    let fetched_from = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok());
    fetched_from.is_some_and(|site| site != "same-origin" && site != "none")
}

/// Whether a request comes from a page of this listener, or from no page at all.
pub(super) fn is_own_origin(headers: &HeaderMap, is_tls: bool) -> bool {
    if is_fetched_from_elsewhere(headers) {
        return false;
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return true };
    let host = header_text(headers, header::HOST).unwrap_or_default();
    let scheme = if is_tls { "https://" } else { "http://" };
    let origin = origin.to_str().unwrap_or_default();
    !host.is_empty() && origin.strip_prefix(scheme).is_some_and(|from| from.eq_ignore_ascii_case(host))
}

/// Decodes `%41` and, in a query, `+`. `None`: not well-formed.
pub(super) fn percent_decoded(text: &str, plus_is_blank: bool) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                out.push((high * 16 + low) as u8);
            }
            b'+' if plus_is_blank => out.push(b' '),
            byte => out.push(byte),
        }
    }
    Some(out)
}

/// The words behind `?`.
#[derive(Debug, Default)]
pub(super) struct Words(Vec<(String, Vec<u8>)>);

/// Words of one request.
const WORDS_MAX: usize = 32;

impl Words {
    pub(super) fn parse(query: Option<&str>) -> Option<Words> {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let pair = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = String::from_utf8(percent_decoded(name, true)?).ok()?;
            Some((name, percent_decoded(value, true)?))
        };
        pairs.take(WORDS_MAX).map(pair).collect::<Option<Vec<_>>>().map(Words)
    }

    /// A word that is there and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(have, _)| have == name);
        found.map(|(_, value)| value.as_slice()).filter(|value| !value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_else_can_point_here_are_own() {
        let own = ["node-1.example".to_owned()];
        for host in [
            "127.0.0.1:9091",
            "localhost:1",
            "LocalHost",
            "a.localhost.",
            "[::1]:80",
            "[::1]",
            "::1",
            "10.1.2.3",
            "Node-1.example:9",
        ] {
            assert!(is_own_host(host, &own), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9091", "localhost.evil.example", "127.0.0.1.evil.example"]
        {
            assert!(!is_own_host(host, &own), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_known_by_its_origin() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (header::HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            pairs.collect::<HeaderMap>()
        };
        assert!(is_own_origin(&headers(&[("host", "a:1")]), false), "no browser");
        assert!(is_own_origin(&headers(&[("host", "a:1"), ("origin", "http://a:1")]), false));
        for bad in [
            &[("host", "a:1"), ("origin", "http://b:1")][..],
            &[("host", "a:1"), ("origin", "https://a:1")],
            &[("host", "a:1"), ("origin", "null")],
            &[("origin", "http://")],
            &[("host", "a:1"), ("origin", "http://a:1"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(!is_own_origin(&headers(bad), false), "{bad:?}");
        }
    }

    #[test]
    fn words_and_cookies_are_read() {
        let words = Words::parse(Some("match=a%3a*+b&count=&x")).unwrap();
        assert_eq!(words.get("match"), Some(&b"a:* b"[..]));
        assert_eq!(words.get("count"), None);
        assert!(Words::parse(Some("a=%4")).is_none() && Words::parse(Some("a=%zz")).is_none());
        assert_eq!(percent_decoded("a+%FF", false), Some(b"a+\xff".to_vec()));
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_static("a=1; redfence_session=xyz"));
        assert_eq!(cookie(&headers, "redfence_session"), Some("xyz"));
        assert_eq!(cookie(&headers, "redfence"), None);
    }
}
