//! Walks: `KEYS`, `SCAN`, `RANDOMKEY`, and `HSCAN`, `SSCAN`, `ZSCAN`.
//!
//! The walks over one collection answer it whole with cursor 0, as Redis does for small ones: `COUNT` is but a hint.

use super::args::{self, is};
use super::context::{CommandResult, Context};
use super::errors;
use super::numbers::{format_g, int_bytes};
use crate::glob;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

/// Keys shown by one `SCAN` at most.
const SCAN_COUNT_MAX: usize = 1_000;
/// Records looked at by one `SCAN` at most: some are free, or in another database, or not what is looked for.
const SCAN_RECORDS_MAX: usize = 10_000;
/// Keys looked at in one go by commands that look at all of them.
const SLICE: usize = 16;
/// Steps of a pattern after which a `SCAN` answers what it has.
const STEPS_PER_SCAN_MAX: u64 = 4_000_000;
/// Steps of a pattern that cost as much as a look at a record.
const STEPS_PER_UNIT: usize = 64;
/// Steps that no command has work for, logged or not: 400,000 units.
const STEPS_PER_COMMAND_MAX: u64 = 400_000 * STEPS_PER_UNIT as u64;

/// Bytes of names after which a page of `SCAN` ends.
const PAGE_BYTES: usize = 512 * 1024;

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

    fn takes(&self, name: &[u8], steps: &mut u64) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches_counted(pattern, name, steps))
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

pub(super) fn keys(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    errors::check_pattern(argv[1])?;
    let filter = Filter { pattern: Some(argv[1]), count: usize::MAX, type_name: None };
    let (mut found, mut cursor, mut steps) = (Vec::new(), 0, 0);
    let (mut bytes, mut counted) = (0, 0);
    loop {
        cursor = scan_slice(cx, cursor, SLICE, &filter, &mut found, &mut steps)?;
        bytes += found[counted..].iter().map(Reply::weight).sum::<usize>();
        counted = found.len();
        cx.replies.check(bytes)?;
        if cursor == 0 {
            break;
        }
    }
    if !cx.keys.is_version_1() {
        cx.charge(found.len())?;
        found.sort_unstable_by(|one, other| name_of(one).cmp(name_of(other)));
    }
    Ok(Reply::Array(found))
}

fn name_of(found: &Reply) -> &[u8] {
    let Reply::Bulk(name) = found else { unreachable!("a walk finds names") };
    name
}

/// One slice of a walk over all keys, paid for by the records looked at and the steps of the pattern. Answers where to go on.
fn scan_slice(
    cx: &Context<'_>,
    from: u64,
    count: usize,
    filter: &Filter<'_>,
    found: &mut Vec<Reply>,
    steps: &mut u64,
) -> Result<u64, Refusal> {
    cx.charge(count)?;
    let (before, is_version_1) = (*steps, cx.keys.is_version_1());
    let next = cx.keys.scan(cx.db, from, count, &mut |key, value| {
        let type_fits = filter.type_name.is_none_or(|name| is(name, value.type_name()));
        // More than a command may take: it is refused.
        let is_too_much = !is_version_1 && *steps - before > STEPS_PER_COMMAND_MAX;
        if type_fits && !is_too_much && filter.takes(key, steps) {
            found.push(Reply::bulk(key));
        }
    });
    cx.charge_done((*steps - before) as usize / STEPS_PER_UNIT)?;
    Ok(next)
}

/// Shows as many keys as `COUNT` says. Ends early where it had to look at many records for them, or where names are long or the
/// pattern is hard to match.
pub(super) fn scan(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let mut cursor = cursor(argv[1])?;
    let filter = Filter::parse(&argv[2..], true)?;
    let counts_records = cx.keys.is_version_1();
    let (mut found, mut looked, mut steps, mut bytes) = (Vec::new(), 0, 0, 0);
    loop {
        let (counted, records_max) = match counts_records {
            true => (looked, filter.count),
            false => (found.len(), SCAN_RECORDS_MAX),
        };
        let slice = (filter.count - counted).min(SLICE);
        let shown_before = found.len();
        cursor = scan_slice(cx, cursor, slice, &filter, &mut found, &mut steps)?;
        looked += slice;
        bytes += found[shown_before..].iter().map(Reply::weight).sum::<usize>();
        let is_full = found.len() >= filter.count || looked >= records_max;
        if cursor == 0 || is_full || steps > STEPS_PER_SCAN_MAX || bytes > PAGE_BYTES {
            return Ok(page(cursor, found));
        }
    }
}

/// Not random: every node must answer the same. The first key in the order of `SCAN`.
pub(super) fn randomkey(cx: &mut Context<'_>, _argv: &[&[u8]]) -> CommandResult {
    let mut first = Reply::Nil;
    let mut cursor = 0;
    loop {
        cx.charge(SLICE)?;
        cursor = cx.keys.scan(cx.db, cursor, SLICE, &mut |key, _| {
            if first == Reply::Nil {
                first = Reply::bulk(key);
            }
        });
        if cursor == 0 || first != Reply::Nil {
            return Ok(first);
        }
    }
}

/// The pages of `HSCAN` and its like: everything that the pattern takes, paid for as it is looked at.
fn whole<'a, T>(
    cx: &Context<'_>,
    filter: &Filter<'_>,
    elements: impl Iterator<Item = (&'a Bytes, T)>,
    mut show: impl FnMut(&mut Vec<Reply>, &Bytes, T),
) -> CommandResult {
    let mut items = Vec::new();
    for (name, element) in elements {
        let mut steps = 0;
        if filter.takes(name, &mut steps) {
            show(&mut items, name, element);
        }
        cx.charge_done(1 + steps as usize / STEPS_PER_UNIT)?;
    }
    Ok(page(0, items))
}

pub(super) fn hscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let fields = cx.hash(argv[1])?.into_iter().flat_map(|fields| fields.iter());
    whole(cx, &filter, fields, |items, name, value| {
        items.extend([Reply::Bulk(name.clone()), Reply::Bulk(value.clone())]);
    })
}

pub(super) fn sscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let members = cx.set(argv[1])?.into_iter().flat_map(|members| members.iter());
    whole(cx, &filter, members, |items, name, ()| items.push(Reply::Bulk(name.clone())))
}

pub(super) fn zscan(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    cursor(argv[2])?;
    let filter = Filter::parse(&argv[3..], false)?;
    let members = cx.zset(argv[1])?.into_iter().flat_map(|members| members.iter());
    whole(cx, &filter, members.map(|(score, member)| (member, score)), |items, member, score| {
        items.extend([Reply::Bulk(member.clone()), Reply::Bulk(Bytes::from(format_g(score, 17)))]);
    })
}

/// `TIME` from the stamp: seconds and microseconds, as text.
pub(super) fn time(cx: &mut Context<'_>, _argv: &[&[u8]]) -> CommandResult {
    let wall_us = cx.clock().wall_us as i64;
    let part = |number: i64| Reply::Bulk(int_bytes(number));
    Ok(Reply::Array(vec![part(wall_us / 1_000_000), part(wall_us % 1_000_000)]))
}
