//! `GET /api/v1/locks`: a search over held locks of both tiers by pages.
//!
//! A page is made of `LOCK.SCAN` and one `LOCK.INFO` a name, so a million locks are never looked at in one go. It ends at about 1 MiB,
//! with a cursor. A sorted search looks at up to [`SORTED_MAX`] names and answers the first of them in that order.

use super::{json, ApiError};
use crate::admin::caller::Caller;
use crate::admin::http::Words;
use crate::cli::reply::Reply;
use hyper::StatusCode;
use redfence_core::types::{PATTERN_BYTES_MAX, RESOURCE_BYTES_MAX};
use serde_json::{json, Value};
use std::sync::Arc;
use std::time::Duration;

const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 1_000;
/// Bytes after which a page ends.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Names one sorted search looks at, and bytes of their rows.
const SORTED_MAX: usize = 10_000;
const SORTED_BYTES_MAX: usize = 8 << 20;
/// Names that one `LOCK.SCAN` is asked for.
const SCAN_NAMES: usize = 100;
/// `LOCK.SCAN`s of one request that may find nothing: each looks at 10,000 records at most. And records it looks at in all.
const SCANS_MAX: usize = 20;
const LOOKED_AT_MAX: u64 = 200_000;
/// How long the upstream Redis may take for one step.
const REDIS_WITHIN: Duration = Duration::from_secs(5);
/// Of an owner: plain keys may have any value.
const TEXT_BYTES_MAX: usize = 1_024;
/// Holders that `LOCK.INFO` tells of. Where there are as many, there may be more.
pub(super) const HOLDERS_TOLD_MAX: usize = 1_000;

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

/// Whether a search is one that sorts, and so looks at many locks.
pub(in crate::admin) fn is_sorted(words: &Words) -> bool {
    words.get("sort").is_some_and(|sort| sort != b"name")
}

/// What a search has found so far.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    /// Of the rows' texts.
    bytes: usize,
    /// Records that were looked at, about.
    looked_at: u64,
    /// Stores that do not answer.
    missing: Vec<&'static str>,
}

impl Found {
    fn add(&mut self, row: Row) {
        self.bytes += row.text.len();
        self.rows.push(row);
    }
}

/// The answer as text: rows are written as they are made, so that a page takes what its text takes.
pub(in crate::admin) async fn list(mut caller: Caller, words: &Words) -> Result<String, ApiError> {
    let search = search(&caller, words)?;
    let (wanted, bytes_max) = match search.sort {
        Sort::Name => (search.count, PAGE_BYTES_MAX),
        Sort::Waiters | Sort::Age | Sort::Ttl => (SORTED_MAX, SORTED_BYTES_MAX),
    };
    let mut found = Found::default();
    let mut next = Some(search.cursor);
    for _ in 0..SCANS_MAX + wanted / SCAN_NAMES {
        let Some(cursor) = next else { break };
        let is_full = found.rows.len() >= wanted || found.bytes >= bytes_max;
        if is_full || found.looked_at >= LOOKED_AT_MAX {
            break;
        }
        let count = (wanted - found.rows.len()).min(SCAN_NAMES);
        let step = step(&mut caller, &search, cursor, count, &mut found);
        let step = match cursor.store {
            Store::Raft => step.await,
            Store::Redis => tokio::time::timeout(REDIS_WITHIN, step)
                .await
                .unwrap_or_else(|_| Err(ApiError::unavailable("the upstream Redis does not answer"))),
        };
        next = match step {
            Ok(next) => next,
            Err(error) if search.both && error.status == StatusCode::SERVICE_UNAVAILABLE => {
                found.missing.push(cursor.store.word());
                match cursor.store {
                    Store::Raft => Some(Cursor { store: Store::Redis, at: 0 }),
                    // Both are missing.
                    Store::Redis if found.missing.len() > 1 => return Err(error),
                    Store::Redis => None,
                }
            }
            Err(error) => return Err(error),
        };
    }
    Ok(found.text(&search, next))
}

impl Found {
    fn text(mut self, search: &Search, next: Option<Cursor>) -> String {
        match search.sort {
            Sort::Name => self.rows.sort_by(|one, other| one.name.cmp(&other.name)),
            Sort::Waiters | Sort::Age => self.rows.sort_by_key(|row| std::cmp::Reverse(row.order)),
            // Those without an end of their own come last.
            Sort::Ttl => {
                self.rows.sort_by_key(|row| row.order.filter(|ttl| *ttl >= 0).unwrap_or(i64::MAX));
            }
        }
        let bytes = self.bytes.min(PAGE_BYTES_MAX) + (4 << 10);
        let mut text = String::with_capacity(bytes);
        text.push_str("{\"locks\":[");
        let mut shown = 0;
        for row in self.rows.iter().take(search.count) {
            if search.sort != Sort::Name && text.len() > PAGE_BYTES_MAX {
                break;
            }
            if shown > 0 {
                text.push(',');
            }
            text.push_str(&row.text);
            shown += 1;
        }
        let rest = json!({
            "cursor": Cursor::text(next),
            "looked_at": self.looked_at,
            "complete": next.is_none() && shown == self.rows.len() && self.missing.is_empty(),
            "missing": self.missing,
        });
        text.push_str("],");
        text.push_str(&rest.to_string()[1..]);
        text
    }
}

/// One `LOCK.SCAN` and the rows of its names; where the search goes on.
async fn step(
    caller: &mut Caller,
    search: &Search,
    cursor: Cursor,
    count: usize,
    found: &mut Found,
) -> Result<Option<Cursor>, ApiError> {
    let (at, count) = (cursor.at.to_string(), count.to_string());
    let mut command = vec![&b"LOCK.SCAN"[..], at.as_bytes(), b"COUNT", count.as_bytes()];
    if let Some(pattern) = &search.pattern {
        command.extend([&b"MATCH"[..], pattern]);
    }
    command.extend([&b"TIER"[..], cursor.store.word().as_bytes()]);
    let reply = caller.ask(&command).await?;
    let [next, names] = reply.items() else { return Err(ApiError::cut_off()) };
    let next = next.int().map_or(0, |next| next as u64);
    let names: Vec<&[u8]> = names.items().iter().filter_map(Reply::bytes).collect();
    found.looked_at += match cursor.store {
        Store::Raft if next > cursor.at => next - cursor.at,
        Store::Raft | Store::Redis => names.len() as u64,
    };
    add_rows(caller, search.sort, cursor.store, &names, found).await?;
    Ok(match (next, cursor.store) {
        (0, Store::Raft) if search.both => Some(Cursor { store: Store::Redis, at: 0 }),
        (0, Store::Raft | Store::Redis) => None,
        (at, store) => Some(Cursor { store, at }),
    })
}

struct Row {
    name: Vec<u8>,
    /// By what a search sorts.
    order: Option<i64>,
    text: String,
}

/// What `LOCK.INFO` says of each. Of names the user may not ask about, and of plain keys whose names are longer than those of locks, only
/// the name is shown, as `LOCK.SCAN` does.
async fn add_rows(
    caller: &mut Caller,
    sort: Sort,
    store: Store,
    names: &[&[u8]],
    found: &mut Found,
) -> Result<(), ApiError> {
    let user = Arc::clone(&caller.user);
    let may_ask =
        |name: &[u8]| name.len() <= RESOURCE_BYTES_MAX && user.check(&[b"LOCK.INFO", name], None).is_ok();
    let (asked, bare): (Vec<&[u8]>, Vec<&[u8]>) = names.iter().partition(|name| may_ask(name));
    let command = |name: &&[u8]| {
        vec![b"LOCK.INFO".to_vec(), name.to_vec(), b"TIER".to_vec(), store.word().as_bytes().to_vec()]
    };
    let commands: Vec<Vec<Vec<u8>>> = asked.iter().map(command).collect();
    let mut unavailable = None;
    let mut left = asked.iter();
    let each = |reply: Reply| {
        let Some(name) = left.next() else { return };
        if let Reply::Error(text) = &reply {
            let error = ApiError::of_text(text);
            if error.status == StatusCode::SERVICE_UNAVAILABLE {
                unavailable = Some(error);
                return;
            }
        }
        // One that has ended since the scan is gone; one that cannot be asked about keeps its name.
        if reply.field("state").and_then(Reply::bytes) != Some(b"free") {
            found.add(row(sort, store, name, Some(&reply)));
        }
    };
    caller.ask_each(&commands, each).await?;
    if let Some(error) = unavailable {
        return Err(error);
    }
    for name in bare {
        found.add(row(sort, store, name, None));
    }
    Ok(())
}

fn row(sort: Sort, store: Store, name: &[u8], info: Option<&Reply>) -> Row {
    let field = |field: &str| match info.and_then(|info| info.field(field)) {
        Some(Reply::Text(text)) => json::cut(text, TEXT_BYTES_MAX).into(),
        Some(reply) => json::of_reply(reply),
        None => Value::Null,
    };
    let holders = info.and_then(|info| info.field("holders")).map(|holders| holders.items().len());
    let is_long = name.len() > RESOURCE_BYTES_MAX;
    // Where there is no Redis, all locks are those of the Raft cluster.
    let tier = info.and_then(|info| info.field("tier")).and_then(Reply::bytes);
    let tier = tier.map_or(store.word().to_owned(), |tier| json::shown(tier).to_ascii_lowercase());
    let mut value = json!({
        "name": json::cut(name, RESOURCE_BYTES_MAX),
        "key": (!is_long).then(|| json::key(name)),
        "tier": tier,
        "mode": field("mode"),
        "fence": field("fence"),
        "owner": field("owner"),
        "session": field("session"),
        "ttl_ms": field("ttl"),
        "held_ms": field("held_ms"),
        "waiters": field("waiters"),
        "holders": holders,
    });
    if is_long {
        value["name_bytes"] = name.len().into();
    }
    if holders.is_some_and(|holders| holders >= HOLDERS_TOLD_MAX) {
        value["holders_more"] = true.into();
    }
    let order = match sort {
        Sort::Name => None,
        Sort::Waiters => value["waiters"].as_i64(),
        Sort::Age => value["held_ms"].as_i64(),
        Sort::Ttl => value["ttl_ms"].as_i64(),
    };
    Row { name: name[..name.len().min(RESOURCE_BYTES_MAX)].to_vec(), order, text: value.to_string() }
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
