//! Ranges of sorted sets: by rank, by score and by name; shown, counted, stored or removed.

use super::args::{self, is};
use super::context::{CommandResult, Context};
use super::errors;
use super::keys::Deadline;
use super::numbers::parse_f64;
use super::sorted::Sorted;
use super::value::Value;
use super::zsets::shown;
use crate::reply::{Refusal, Reply};
use bytes::Bytes;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Lex,
}

#[derive(Clone, Copy, Debug)]
struct Bound {
    value: f64,
    open: bool,
}

impl Bound {
    fn parse(arg: &[u8]) -> Result<Bound, Refusal> {
        let (open, text) = match arg.strip_prefix(b"(") {
            Some(rest) => (true, rest),
            None => (false, arg),
        };
        let value = parse_f64(text).ok_or(errors::MIN_OR_MAX_NOT_A_FLOAT)?;
        Ok(Bound { value, open })
    }
}

#[derive(Clone, Copy, Debug)]
enum LexBound<'a> {
    Lowest,
    Highest,
    At { name: &'a [u8], open: bool },
}

impl<'a> LexBound<'a> {
    fn parse(arg: &'a [u8]) -> Result<LexBound<'a>, Refusal> {
        match arg {
            b"-" => Ok(LexBound::Lowest),
            b"+" => Ok(LexBound::Highest),
            [b'(', name @ ..] => Ok(LexBound::At { name, open: true }),
            [b'[', name @ ..] => Ok(LexBound::At { name, open: false }),
            _ => Err(errors::MIN_OR_MAX_NOT_A_RANGE),
        }
    }

    /// Redis looks at both ends before it walks, which shows where scores differ and names are not in order.
    fn outside(min: LexBound<'_>, max: LexBound<'_>, members: &Sorted) -> bool {
        let crossed = match (min, max) {
            (LexBound::Highest, _) | (_, LexBound::Lowest) => true,
            (LexBound::Lowest, _) | (_, LexBound::Highest) => false,
            (LexBound::At { name: low, open: low_open }, LexBound::At { name: high, open: high_open }) => {
                low > high || (low == high && (low_open || high_open))
            }
        };
        let first_fits = members.iter().next().is_some_and(|(_, first)| max.allows_to(first));
        let last_fits = members.iter().next_back().is_some_and(|(_, last)| min.allows_from(last));
        crossed || !first_fits || !last_fits
    }

    fn allows_from(self, member: &[u8]) -> bool {
        match self {
            LexBound::Lowest => true,
            LexBound::Highest => false,
            LexBound::At { name, open: true } => member > name,
            LexBound::At { name, open: false } => member >= name,
        }
    }

    fn allows_to(self, member: &[u8]) -> bool {
        match self {
            LexBound::Lowest => false,
            LexBound::Highest => true,
            LexBound::At { name, open: true } => member < name,
            LexBound::At { name, open: false } => member <= name,
        }
    }
}

/// Which members.
#[derive(Clone, Copy, Debug)]
enum Range<'a> {
    Rank(i64, i64),
    Score(Bound, Bound),
    Lex(LexBound<'a>, LexBound<'a>),
}

impl<'a> Range<'a> {
    fn parse(by: By, min: &'a [u8], max: &'a [u8]) -> Result<Range<'a>, Refusal> {
        Ok(match by {
            By::Rank => Range::Rank(args::int(min)?, args::int(max)?),
            By::Score => Range::Score(Bound::parse(min)?, Bound::parse(max)?),
            By::Lex => Range::Lex(LexBound::parse(min)?, LexBound::parse(max)?),
        })
    }

    /// As [`Range::select`]. Ranks and names are walked to from an end of the set, which is paid for before; of scores only what is passed and
    /// found counts, which is known afterwards.
    fn charged(
        self,
        cx: &Context<'_>,
        members: &Sorted,
        down: bool,
        skip: usize,
        take: usize,
    ) -> Result<Vec<(f64, Bytes)>, Refusal> {
        let looks = match self {
            Range::Rank(start, stop) => args::span(start, stop, members.len()).map_or(0, |span| span.end),
            Range::Score(..) => skip.min(members.len()),
            Range::Lex(..) => members.len(),
        };
        cx.charge(looks)?;
        let found = self.select(members, down, skip, take);
        cx.charge(found.len())?;
        Ok(found)
    }

    /// The members of the range, `skip` left out, at most `take`, from the highest down if `down`.
    fn select(self, members: &Sorted, down: bool, skip: usize, take: usize) -> Vec<(f64, Bytes)> {
        let own = |(score, member): (f64, &Bytes)| (score, member.clone());
        match self {
            Range::Rank(start, stop) => {
                let Some(span) = args::span(start, stop, members.len()) else { return Vec::new() };
                if down {
                    members.iter().rev().skip(span.start).take(span.len()).map(own).collect()
                } else {
                    members.iter().skip(span.start).take(span.len()).map(own).collect()
                }
            }
            Range::Score(min, max) if down => members
                .iter_down_from(max.value)
                .skip_while(|(score, _)| max.open && *score == max.value)
                .take_while(|(score, _)| if min.open { *score > min.value } else { *score >= min.value })
                .skip(skip)
                .take(take)
                .map(own)
                .collect(),
            Range::Score(min, max) => members
                .iter_from(min.value)
                .skip_while(|(score, _)| min.open && *score == min.value)
                .take_while(|(score, _)| if max.open { *score < max.value } else { *score <= max.value })
                .skip(skip)
                .take(take)
                .map(own)
                .collect(),
            Range::Lex(min, max) if LexBound::outside(min, max, members) => Vec::new(),
            Range::Lex(min, max) => {
                let (from_min, to_max) =
                    (|name: &Bytes| min.allows_from(name), |name: &Bytes| max.allows_to(name));
                if down {
                    walk_names(members.iter().rev(), to_max, from_min, skip, take)
                } else {
                    walk_names(members.iter(), from_min, to_max, skip, take)
                }
            }
        }
    }
}

/// As Redis walks by name: what is skipped is not held against the far end, which shows where scores differ.
fn walk_names<'m>(
    members: impl Iterator<Item = (f64, &'m Bytes)>,
    starts: impl Fn(&Bytes) -> bool,
    goes_on: impl Fn(&Bytes) -> bool,
    skip: usize,
    take: usize,
) -> Vec<(f64, Bytes)> {
    let mut members = members.skip_while(|(_, name)| !starts(name)).peekable();
    if members.peek().is_none_or(|(_, name)| !goes_on(name)) {
        return Vec::new();
    }
    let shown = members.skip(skip).take_while(|(_, name)| goes_on(name)).take(take);
    shown.map(|(score, name)| (score, name.clone())).collect()
}

/// What the name of the command fixes: by what, and which end first. `None`: the words say.
#[derive(Clone, Copy)]
struct RangeForm {
    by: Option<By>,
    down: Option<bool>,
}

struct RangeQuery<'a> {
    range: Range<'a>,
    down: bool,
    with_scores: bool,
    skip: i64,
    take: i64,
}

/// `min max [BYSCORE|BYLEX] [REV] [LIMIT skip take] [WITHSCORES]`, as far as the form allows.
fn parse<'a>(words: &[&'a [u8]], form: RangeForm, may_show_scores: bool) -> Result<RangeQuery<'a>, Refusal> {
    let (mut by, mut down, mut with_scores, mut limit) = (form.by, form.down, false, None);
    let mut rest = words[2..].iter();
    while let Some(word) = rest.next() {
        if may_show_scores && is(word, "WITHSCORES") {
            with_scores = true;
        } else if is(word, "LIMIT") {
            let (Some(skip), Some(take)) = (rest.next(), rest.next()) else { return Err(errors::SYNTAX) };
            limit = Some((args::int(skip)?, args::int(take)?));
        } else if form.down.is_none() && down.is_none() && is(word, "REV") {
            down = Some(true);
        } else if form.by.is_none() && by.is_none() && is(word, "BYLEX") {
            by = Some(By::Lex);
        } else if form.by.is_none() && by.is_none() && is(word, "BYSCORE") {
            by = Some(By::Score);
        } else {
            return Err(errors::SYNTAX);
        }
    }
    let (by, down) = (by.unwrap_or(By::Rank), down.unwrap_or(false));
    let (skip, take) = limit.unwrap_or((0, -1));
    // A limit of -1 is none.
    if take != -1 && by == By::Rank {
        return Err(Refusal::new(
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
        ));
    }
    if with_scores && by == By::Lex {
        return Err(Refusal::new("ERR syntax error, WITHSCORES not supported in combination with BYLEX"));
    }
    // From the highest down, the higher bound comes first; ranks count from the top then.
    let (min, max) = if down && by != By::Rank { (words[1], words[0]) } else { (words[0], words[1]) };
    Ok(RangeQuery { range: Range::parse(by, min, max)?, down, with_scores, skip, take })
}

impl RangeQuery<'_> {
    fn select(&self, cx: &Context<'_>, members: &Sorted) -> Result<Vec<(f64, Bytes)>, Refusal> {
        let Ok(skip) = usize::try_from(self.skip) else { return Ok(Vec::new()) };
        let take = usize::try_from(self.take).unwrap_or(usize::MAX);
        self.range.charged(cx, members, self.down, skip, take)
    }
}

fn range(cx: &mut Context<'_>, argv: &[&[u8]], by: Option<By>, down: Option<bool>) -> CommandResult {
    let asked = parse(&argv[2..], RangeForm { by, down }, true)?;
    let resp = cx.resp;
    let found = cx.zset(argv[1])?.map_or(Ok(Vec::new()), |members| asked.select(cx, members))?;
    Ok(shown(&found, asked.with_scores, resp))
}

pub(super) fn zrange(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, None, None)
}

pub(super) fn zrevrange(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, Some(By::Rank), Some(true))
}

pub(super) fn zrangebyscore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, Some(By::Score), Some(false))
}

pub(super) fn zrevrangebyscore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, Some(By::Score), Some(true))
}

pub(super) fn zrangebylex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, Some(By::Lex), Some(false))
}

pub(super) fn zrevrangebylex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    range(cx, argv, Some(By::Lex), Some(true))
}

pub(super) fn zrangestore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    let asked = parse(&argv[3..], RangeForm { by: None, down: None }, false)?;
    let found = cx.zset(argv[2])?.map_or(Ok(Vec::new()), |members| asked.select(cx, members))?;
    cx.charge(4 * found.len())?;
    let mut copy = Sorted::default();
    for (score, member) in &found {
        cx.charge_compared(copy.compared_bytes(member))?;
        copy.insert(member, *score);
    }
    cx.put(argv[1], Value::ZSet(Box::new(copy)), Deadline::Never)?;
    Ok(Reply::Int(found.len() as i64))
}

fn count(cx: &mut Context<'_>, argv: &[&[u8]], by: By) -> CommandResult {
    let range = Range::parse(by, argv[2], argv[3])?;
    let members = cx.zset(argv[1])?;
    let found = members.map_or(Ok(Vec::new()), |members| range.charged(cx, members, false, 0, usize::MAX))?;
    Ok(Reply::Int(found.len() as i64))
}

pub(super) fn zcount(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    count(cx, argv, By::Score)
}

pub(super) fn zlexcount(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    count(cx, argv, By::Lex)
}

fn remove(cx: &mut Context<'_>, argv: &[&[u8]], by: By) -> CommandResult {
    let range = Range::parse(by, argv[2], argv[3])?;
    let Some(members) = cx.zset(argv[1])? else { return Ok(Reply::Int(0)) };
    let doomed = range.charged(cx, members, false, 0, usize::MAX)?;
    cx.charge(4 * doomed.len())?;
    cx.charge_compared(doomed.iter().map(|(_, member)| members.compared_bytes(member)).sum())?;
    if doomed.is_empty() {
        return Ok(Reply::Int(0));
    }
    cx.change_zset(argv[1], |members| {
        for (_, member) in &doomed {
            members.remove(member);
        }
        (true, ())
    })?;
    Ok(Reply::Int(doomed.len() as i64))
}

pub(super) fn zremrangebyscore(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    remove(cx, argv, By::Score)
}

pub(super) fn zremrangebyrank(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    remove(cx, argv, By::Rank)
}

pub(super) fn zremrangebylex(cx: &mut Context<'_>, argv: &[&[u8]]) -> CommandResult {
    remove(cx, argv, By::Lex)
}
