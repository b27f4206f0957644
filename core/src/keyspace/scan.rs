//! Walks: `KEYS`, `SCAN`, `RANDOMKEY`, and `HSCAN`, `SSCAN`, `ZSCAN`.
//!
//! The walks over one collection answer it whole with cursor 0, as Redis does for small ones: `COUNT` is but a hint.

use super::args::{self, is};
use super::context::{Answer, Context};
use super::errors;
use super::numbers::{format_g, int_bytes};
use crate::glob;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// Keys looked at by one `SCAN` at most.
const SCAN_COUNT_MAX: usize = 10_000;

struct Filter<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    type_name: Option<&'a [u8]>,
}

impl<'a> Filter<'a> {
    fn parse(words: &[&'a [u8]], with_type: bool) -> Result<Filter<'a>, Refusal> {
        let mut filter = Filter { pattern: None, count: 10, type_name: None };
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            let Some(value) = rest.next() else { return Err(errors::SYNTAX) };
            if is(word, "MATCH") {
                errors::check_pattern(value)?;
                filter.pattern = Some(value);
            } else if is(word, "COUNT") {
                let count = args::int(value)?;
                if count < 1 {
                    return Err(errors::SYNTAX);
                }
                filter.count = (count as usize).min(SCAN_COUNT_MAX);
            } else if with_type && is(word, "TYPE") {
                filter.type_name = Some(value);
            } else {
                return Err(errors::SYNTAX);
            }
        }
        Ok(filter)
    }

    fn takes(&self, name: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, name))
    }
}

/// As C's `strtoul` reads it: nothing is 0, and a minus sign wraps around.
fn cursor(arg: &[u8]) -> Result<u64, Refusal> {
    let text = std::str::from_utf8(arg).map_err(|_| errors::INVALID_CURSOR)?;
    if text.is_empty() {
        return Ok(0);
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) if !digits.starts_with('+') => (true, digits),
        _ => (false, text),
    };
    let value: u64 = digits.parse().map_err(|_| errors::INVALID_CURSOR)?;
    Ok(if negative { value.wrapping_neg() } else { value })
}

fn page(cursor: u64, items: Vec<Reply>) -> Reply {
    Reply::Array(vec![Reply::Bulk(Bytes::from(cursor.to_string())), Reply::Array(items)])
}

pub(super) fn keys(cx: &mut Context<'_>, argv: &[&[u8]]) -> Answer {
    errors::check_pattern(argv[1])?;
    let mut found = Vec::new();
    cx.keys.scan(cx.db, 0, usize::MAX, &mut |key, _| {
        if glob::matches(argv[1], key) {
            found.push(Reply::bulk(key));
        }
    });
    Ok(Reply::Array(found))
}

pub(super) fn scan(cx: &mut Context<'_>, argv: &[&[u8]]) -> Answer {
    let from = cursor(argv[1])?;
    let filter = Filter::parse(&argv[2..], true)?;
    let mut found = Vec::new();
    let next = cx.keys.scan(cx.db, from, filter.count, &mut |key, value| {
        let type_fits = filter.type_name.is_none_or(|name| is(name, value.type_name()));
        if type_fits && filter.takes(key) {
            found.push(Reply::bulk(key));
        }
    });
    Ok(page(next, found))
}

/// Not random: every node must answer the same. The first key in the order of `SCAN`.
pub(super) fn randomkey(cx: &mut Context<'_>, _argv: &[&[u8]]) -> Answer {
    let mut first = Reply::Nil;
    let mut cursor = 0;
    loop {
        cursor = cx.keys.scan(cx.db, cursor, 1, &mut |key, _| {
            if first == Reply::Nil {
                first = Reply::bulk(key);
            }
        });
        if cursor == 0 || first != Reply::Nil {
            return Ok(first);
        }
    }
}

pub(super) fn hscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> Answer {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let mut items = Vec::new();
    if let Some(fields) = cx.hash(argv[1])? {
        for (name, value) in fields.iter().filter(|(name, _)| filter.takes(name)) {
            items.push(Reply::Bulk(name.clone()));
            items.push(Reply::Bulk(value.clone()));
        }
    }
    Ok(page(0, items))
}

pub(super) fn sscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> Answer {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let mut items = Vec::new();
    if let Some(members) = cx.set(argv[1])? {
        let taken = members.iter().filter(|(name, ())| filter.takes(name));
        items.extend(taken.map(|(name, ())| Reply::Bulk(name.clone())));
    }
    Ok(page(0, items))
}

pub(super) fn zscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> Answer {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let mut items = Vec::new();
    if let Some(members) = cx.zset(argv[1])? {
        for (score, member) in members.iter().filter(|(_, member)| filter.takes(member)) {
            items.push(Reply::Bulk(member.clone()));
            items.push(Reply::Bulk(Bytes::from(format_g(score, 17))));
        }
    }
    Ok(page(0, items))
}

/// `TIME` from the stamp: seconds and microseconds, as text.
pub(super) fn time(cx: &mut Context<'_>, _argv: &[&[u8]]) -> Answer {
    let wall_us = cx.clock().wall_us as i64;
    let part = |number: i64| Reply::Bulk(int_bytes(number));
    Ok(Reply::Array(vec![part(wall_us / 1_000_000), part(wall_us % 1_000_000)]))
}
