//! `GET /api/v1/locks` and `GET /api/v1/locks/{key}`: a search over held locks of both tiers by pages, and one lock.
//!
//! A page is made of `LOCK.SCAN` and one `LOCK.INFO` a name, so a million locks are never looked at in one go. A sorted search looks at
//! up to [`SORTED_MAX`] names and answers the first of them in that order.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use crate::cli::reply::Reply;
use crate::node_api::OwnedQuery;
use bytes::Bytes;
use hyper::StatusCode;
use redfence_core::types::PATTERN_BYTES_MAX;
use serde_json::{json, Value};

const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;
/// Names one sorted search looks at.
const SORTED_MAX: usize = 10_000;
/// `LOCK.SCAN`s of one request: each looks at 10,000 records at most.
const SCANS_MAX: usize = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Name,
    Waiters,
    Age,
    Ttl,
}

/// Which store a page is of: the letter is part of the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Raft,
    Redis,
}

impl Store {
    fn word(self) -> &'static str {
        match self {
            Store::Raft => "correctness",
            Store::Redis => "efficiency",
        }
    }
}

/// Where a search goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    store: Store,
    at: u64,
}

impl Cursor {
    /// `0`, `c17` or `e17`.
    fn parse(text: &[u8], first: Store) -> Option<Cursor> {
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
        match text {
            b"0" => Some(Cursor { store: first, at: 0 }),
            [b'c', at @ ..] => Some(Cursor { store: Store::Raft, at: number(at)? }),
            [b'e', at @ ..] => Some(Cursor { store: Store::Redis, at: number(at)? }),
            _ => None,
        }
    }

    fn text(cursor: Option<Cursor>) -> String {
        match cursor {
            None => "0".to_owned(),
            Some(Cursor { store: Store::Raft, at }) => format!("c{at}"),
            Some(Cursor { store: Store::Redis, at }) => format!("e{at}"),
        }
    }
}

/// What is asked for.
struct Search {
    pattern: Option<Vec<u8>>,
    sort: Sort,
    count: usize,
    cursor: Cursor,
    /// The second store follows the first.
    both: bool,
}

fn search(caller: &Caller, words: &Words) -> Result<Search, ApiError> {
    let has_upstream = caller.admin.server.upstream.is_some();
    let (first, both) = match words.get("tier").map(<[u8]>::to_ascii_lowercase).as_deref() {
        None | Some(b"all" | b"both") => (Store::Raft, has_upstream),
        Some(b"correctness") => (Store::Raft, false),
        Some(b"efficiency") => (Store::Redis, false),
        Some(_) => return Err(ApiError::bad("tier must be correctness or efficiency")),
    };
    let sort = match words.get("sort").unwrap_or(b"name") {
        b"name" => Sort::Name,
        b"waiters" => Sort::Waiters,
        b"age" => Sort::Age,
        b"ttl" => Sort::Ttl,
        _ => return Err(ApiError::bad("sort must be name, waiters, age or ttl")),
    };
    let count =
        words.get("count").map_or(Some(COUNT_DEFAULT), |text| std::str::from_utf8(text).ok()?.parse().ok());
    let count = count.filter(|count| (1..=COUNT_MAX).contains(count));
    let count = count.ok_or_else(|| ApiError::bad("count must be 1 to 1000"))?;
    let cursor = Cursor::parse(words.get("cursor").unwrap_or(b"0"), first);
    let cursor = cursor.ok_or_else(|| ApiError::bad("cursor must be one that an answer gave, or 0"))?;
    let pattern = words.get("match").map(<[u8]>::to_vec);
    if pattern.as_ref().is_some_and(|pattern| pattern.len() > PATTERN_BYTES_MAX) {
        return Err(ApiError::bad("match has at most 1024 bytes"));
    }
    Ok(Search { pattern, sort, count, cursor, both })
}

/// Names that were found.
#[derive(Default)]
struct Found {
    names: Vec<(Store, Vec<u8>)>,
    /// Records that were looked at, about.
    looked_at: u64,
    next: Option<Cursor>,
}

pub(in crate::admin) async fn list(mut caller: Caller, words: &Words) -> Result<Value, ApiError> {
    let search = search(&caller, words)?;
    let admin = std::sync::Arc::clone(&caller.admin);
    let _turn = match search.sort {
        Sort::Name => None,
        Sort::Waiters | Sort::Age | Sort::Ttl => Some(admin.sorts.acquire().await),
    };
    let found = scan(&mut caller, &search).await?;
    let mut rows = rows(&mut caller, &found.names).await?;
    match search.sort {
        Sort::Name => rows.sort_by(|one, other| one.name.cmp(&other.name)),
        Sort::Waiters => rows.sort_by_key(|row| std::cmp::Reverse(row.number("waiters"))),
        Sort::Age => rows.sort_by_key(|row| std::cmp::Reverse(row.number("held_ms"))),
        // Those without an end of their own come last.
        Sort::Ttl => rows.sort_by_key(|row| row.number("ttl_ms").filter(|ttl| *ttl >= 0).unwrap_or(i64::MAX)),
    }
    let is_cut = rows.len() > search.count;
    rows.truncate(search.count);
    Ok(json!({
        "locks": rows.into_iter().map(|row| row.value).collect::<Vec<_>>(),
        "cursor": Cursor::text(found.next),
        "looked_at": found.looked_at,
        "complete": found.next.is_none() && !is_cut,
    }))
}

async fn scan(caller: &mut Caller, search: &Search) -> Result<Found, ApiError> {
    let wanted = if search.sort == Sort::Name { search.count } else { SORTED_MAX };
    let mut found = Found::default();
    let mut cursor = search.cursor;
    for _ in 0..SCANS_MAX {
        let count = (wanted - found.names.len()).min(COUNT_MAX).to_string();
        let at = cursor.at.to_string();
        let mut command = vec![&b"LOCK.SCAN"[..], at.as_bytes(), b"COUNT", count.as_bytes()];
        if let Some(pattern) = &search.pattern {
            command.extend([&b"MATCH"[..], pattern]);
        }
        command.extend([&b"TIER"[..], cursor.store.word().as_bytes()]);
        let reply = caller.ask(&command).await?;
        let [next, names] = reply.items() else { return Err(ApiError::cut_off()) };
        let next = next.int().map_or(0, |next| next as u64);
        let names = names.items().iter().filter_map(Reply::bytes);
        let before = found.names.len();
        found.names.extend(names.map(|name| (cursor.store, name.to_vec())));
        let new_names = (found.names.len() - before) as u64;
        found.looked_at += match cursor.store {
            Store::Raft if next > cursor.at => next - cursor.at,
            Store::Raft | Store::Redis => new_names,
        };
        let following = match (next, cursor.store) {
            (0, Store::Raft) if search.both => Some(Cursor { store: Store::Redis, at: 0 }),
            (0, Store::Raft | Store::Redis) => None,
            (at, store) => Some(Cursor { store, at }),
        };
        found.next = following;
        match following {
            Some(following) if found.names.len() < wanted => cursor = following,
            Some(_) | None => break,
        }
    }
    Ok(found)
}

struct Row {
    name: Vec<u8>,
    value: Value,
}

impl Row {
    fn number(&self, field: &str) -> Option<i64> {
        self.value.get(field).and_then(Value::as_i64)
    }
}

/// What `LOCK.INFO` says of each. Of names the user may not ask about only the name is shown, as `LOCK.SCAN` does.
async fn rows(caller: &mut Caller, names: &[(Store, Vec<u8>)]) -> Result<Vec<Row>, ApiError> {
    let may_ask = |(_, name): &&(Store, Vec<u8>)| caller.user.check(&[b"LOCK.INFO", name], None).is_ok();
    let asked: Vec<&(Store, Vec<u8>)> = names.iter().filter(may_ask).collect();
    let bare: Vec<&(Store, Vec<u8>)> = names.iter().filter(|name| !may_ask(name)).collect();
    let command = |(store, name): &&(Store, Vec<u8>)| {
        vec![b"LOCK.INFO".to_vec(), name.clone(), b"TIER".to_vec(), store.word().as_bytes().to_vec()]
    };
    let commands: Vec<Vec<Vec<u8>>> = asked.iter().map(command).collect();
    let replies = caller.ask_all(&commands).await?;
    let errors = replies.iter().filter_map(|reply| match reply {
        Reply::Error(text) => Some(ApiError::of_text(text)),
        Reply::Nil | Reply::Int(_) | Reply::Text(_) | Reply::Array(_) | Reply::Map(_) | Reply::Push(_) => {
            None
        }
    });
    if let Some(error) = errors.into_iter().find(|error| error.status == StatusCode::SERVICE_UNAVAILABLE) {
        return Err(error);
    }
    let mut rows: Vec<Row> = Vec::with_capacity(names.len());
    for ((store, name), reply) in asked.iter().zip(&replies) {
        // One that has ended since the scan is gone; one that cannot be asked about keeps its name.
        let is_free = reply.field("state").and_then(Reply::bytes) == Some(b"free");
        if !is_free {
            rows.push(row(*store, name, Some(reply)));
        }
    }
    rows.extend(bare.iter().map(|(store, name)| row(*store, name, None)));
    Ok(rows)
}

fn row(store: Store, name: &[u8], info: Option<&Reply>) -> Row {
    let field = |field: &str| info.map_or(Value::Null, |info| json::field(info, field));
    let holders = info.and_then(|info| info.field("holders")).map(|holders| holders.items().len());
    let value = json!({
        "name": json::shown(name),
        "key": json::key(name),
        "tier": store.word(),
        "mode": field("mode"),
        "fence": field("fence"),
        "owner": field("owner"),
        "session": field("session"),
        "ttl_ms": field("ttl"),
        "held_ms": field("held_ms"),
        "waiters": field("waiters"),
        "holders": holders,
    });
    Row { name: name.to_vec(), value }
}

/// One lock: who has it, who waits for it, how it ended lately.
pub(in crate::admin) async fn one(mut caller: Caller, name: &[u8], words: &Words) -> Result<Value, ApiError> {
    let tier = words.get("tier").map_or(Vec::new(), |tier| vec![&b"TIER"[..], tier]);
    let info = caller.ask(&[&[&b"LOCK.INFO"[..], name], &tier[..]].concat()).await?;
    // The Lua library of Tier 1 has no EXPLAIN.
    let explain = match caller.ask(&[&[&b"LOCK.EXPLAIN"[..], name], &tier[..]].concat()).await {
        Ok(reply) => json::of_reply(&reply),
        Err(error) if error.code == "TIER" || error.code == "NOPERM" => Value::Null,
        Err(error) => return Err(error),
    };
    let is_raft = info
        .field("tier")
        .and_then(Reply::bytes)
        .is_some_and(|tier| tier.eq_ignore_ascii_case(b"correctness"));
    let recent = match is_raft {
        true => {
            let query = OwnedQuery::Past { db: 0, resource: Bytes::copy_from_slice(name) };
            json::of_reply(&caller.query(query).await?)
        }
        false => json!([]),
    };
    let mut info = json::of_reply(&info);
    info["name"] = json::shown(name).into();
    info["key"] = json::key(name).into();
    Ok(json!({ "info": info, "explain": explain, "recent": recent }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_says_which_store_it_is_of() {
        for cursor in [Cursor { store: Store::Raft, at: 17 }, Cursor { store: Store::Redis, at: 0 }] {
            let text = Cursor::text(Some(cursor));
            assert_eq!(Cursor::parse(text.as_bytes(), Store::Raft), Some(cursor));
        }
        assert_eq!(Cursor::parse(b"0", Store::Redis), Some(Cursor { store: Store::Redis, at: 0 }));
        assert_eq!(Cursor::text(None), "0");
        for bad in [&b""[..], b"c", b"x1", b"c-1", b"1"] {
            assert_eq!(Cursor::parse(bad, Store::Raft), None);
        }
    }
}
