//! Puts back what `BLPOP` and its like popped for a client that was gone by then.
//!
//! A pop is decided in the log, some time after the client was last seen. Where it went away in between, the items go back to the end
//! they were taken from, so that the next in line gets them. `BLMOVE` and `BRPOPLPUSH` need nothing: their item is in the other list.

use crate::tier2::handle::{PendingReply, Tier2Handle};
use bytes::Bytes;
use redfence_core::keyspace::{table, Resp};
use redfence_core::machine::Command;
use redfence_core::reply::Reply;

/// Starts the task that calls the command off and does it. `argv`: the command.
pub fn start(tier2: Tier2Handle, db: u32, argv: Vec<Bytes>, pending: PendingReply) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    let pending = pending.withdraw();
    runtime.spawn(async move {
        let Some(words) = undo(&argv, &pending.await) else { return };
        let mut blob = Vec::with_capacity(128);
        let argv = words.iter().map(|word| &word[..]).collect();
        Command::Redis { db, resp: Resp::Two, member: None, argv }.encode(&mut blob);
        // Where it fails the items are lost, as they are in Redis: there is nobody to tell.
        let _ = tier2.submit(blob.into(), 0).await;
    });
}

/// The command that puts back what `reply` took. `None`: it took nothing.
fn undo(argv: &[Bytes], reply: &Reply) -> Option<Vec<Bytes>> {
    let (Reply::Array(parts), Some(row)) = (reply, table::find(argv.first()?)) else { return None };
    let (key, taken) = parts.split_first()?;
    let mut words = vec![bytes_of(key)?];
    let verb = match row.name {
        "blpop" => "LPUSH",
        "brpop" => "RPUSH",
        "blmpop" if is_left(argv)? => "LPUSH",
        "blmpop" => "RPUSH",
        "bzpopmin" | "bzpopmax" | "bzmpop" => "ZADD",
        _ => return None,
    };
    match taken {
        [member, score] => words.extend([bytes_of(score)?, bytes_of(member)?]),
        [Reply::Array(pairs)] if verb == "ZADD" => {
            for pair in pairs {
                let Reply::Array(pair) = pair else { return None };
                let [member, score] = &pair[..] else { return None };
                words.extend([bytes_of(score)?, bytes_of(member)?]);
            }
        }
        [Reply::Array(items)] => words.extend(items.iter().rev().filter_map(bytes_of)),
        [item] => words.push(bytes_of(item)?),
        _ => return None,
    }
    words.insert(0, Bytes::from_static(verb.as_bytes()));
    Some(words)
}

/// `BLMPOP timeout numkeys key… LEFT|RIGHT`
fn is_left(argv: &[Bytes]) -> Option<bool> {
    let count: usize = std::str::from_utf8(argv.get(2)?).ok()?.parse().ok()?;
    Some(argv.get(3 + count)?.eq_ignore_ascii_case(b"LEFT"))
}

fn bytes_of(reply: &Reply) -> Option<Bytes> {
    if let Reply::Double(score) = reply {
        return Some(score.to_string().into());
    }
    let Reply::Bulk(bytes) = reply else { return None };
    Some(bytes.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn undone(line: &str, reply: Reply) -> Option<String> {
        let argv: Vec<Bytes> = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        let words = undo(&argv, &reply)?;
        Some(
            words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>().join(" "),
        )
    }

    fn bulks(words: &str) -> Vec<Reply> {
        words.split(' ').map(Reply::bulk).collect()
    }

    #[test]
    fn items_go_back_to_where_they_came_from() {
        let pair = |words| Reply::Array(bulks(words));
        let many = || Reply::Array(vec![Reply::bulk("k"), pair("a b c")]);
        assert_eq!(undone("BLPOP k l 0", pair("k a")).unwrap(), "LPUSH k a");
        assert_eq!(undone("brpop k 0", pair("k a")).unwrap(), "RPUSH k a");
        assert_eq!(undone("BLMPOP 0 1 k LEFT COUNT 3", many()).unwrap(), "LPUSH k c b a");
        assert_eq!(undone("BLMPOP 0 1 k right COUNT 3", many()).unwrap(), "RPUSH k c b a");
        assert_eq!(undone("BZPOPMIN k 0", pair("k m 1.5")).unwrap(), "ZADD k 1.5 m");
        let in_resp3 = Reply::Array(vec![Reply::bulk("k"), Reply::bulk("m"), Reply::Double(-0.25)]);
        assert_eq!(undone("BZPOPMAX k 0", in_resp3).unwrap(), "ZADD k -0.25 m");
        let pairs = Reply::Array(vec![pair("a 1"), pair("b 2")]);
        let many = Reply::Array(vec![Reply::bulk("k"), pairs]);
        assert_eq!(undone("BZMPOP 0 1 k MIN COUNT 2", many).unwrap(), "ZADD k 1 a 2 b");
        assert_eq!(undone("BLMOVE k l LEFT LEFT 0", Reply::bulk("a")), None);
        assert_eq!(undone("BLPOP k 0", Reply::NilArray), None);
    }
}
