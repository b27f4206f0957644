//! Sentinels: who is the master. All are asked when a connection is made, and every second while it lasts.

use super::client::UpstreamClient;
use super::stream::{self, within};
use crate::tls::upstream::Connector;
use redfence_core::reply::Reply;
use std::cmp::Reverse;
use std::future::{poll_fn, Future};
use std::io;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

/// From the first byte of a connection to the answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);

/// What one Sentinel says.
#[derive(Debug)]
struct Naming {
    address: String,
    /// Of its knowledge: each failover has a higher one, and Sentinels believe the highest.
    epoch: u64,
}

/// The master by those Sentinels that answer. One that was cut off and knows less than the others counts for nothing.
pub(super) async fn master_address(
    sentinels: &[String],
    master: &str,
    tls: Option<&Connector>,
) -> io::Result<String> {
    let asks = sentinels.iter().map(|sentinel| async move {
        let answer = within(ANSWER_WITHIN, "a Sentinel's question", ask(sentinel, master, tls)).await;
        answer.map_err(|error| io::Error::new(error.kind(), format!("Sentinel {sentinel}: {error}")))
    });
    let (mut namings, mut last) = (Vec::new(), io::Error::new(io::ErrorKind::NotFound, "there are none"));
    for answer in all(asks).await {
        match answer {
            Ok(naming) => namings.push(naming),
            Err(error) => last = error,
        }
    }
    chosen(&namings).map(str::to_owned).ok_or(last)
}

/// The newest knowledge counts, then the number of those who say so, then the order of the list.
fn chosen(namings: &[Naming]) -> Option<&str> {
    let votes = |address: &str| namings.iter().filter(|naming| naming.address == address).count();
    let by_rank = namings
        .iter()
        .enumerate()
        .max_by_key(|(place, naming)| (naming.epoch, votes(&naming.address), Reverse(*place)));
    by_rank.map(|(_, naming)| &*naming.address)
}

/// Waits for all of them at once.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    poll_fn(|context| {
        for (future, output) in running.iter_mut().zip(&mut outputs) {
            if output.is_none() {
                if let Poll::Ready(value) = future.as_mut().poll(context) {
                    *output = Some(value);
                }
            }
        }
        if outputs.iter().all(Option::is_some) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outputs.into_iter().flatten().collect()
}

async fn ask(sentinel: &str, master: &str, tls: Option<&Connector>) -> io::Result<Naming> {
    let mut client = UpstreamClient::over(stream::connect(sentinel, tls).await?);
    let answer = client.call_ok(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master]).await?;
    if answer == Reply::Nil {
        return Err(io::Error::other(format!("it knows no master '{master}'")));
    }
    let address = address_of(&answer)
        .ok_or_else(|| io::Error::other(format!("it answered {answer:?}, which is no address")))?;
    let about = client.call(&["SENTINEL", "MASTER", master]).await?;
    Ok(Naming { address, epoch: epoch_of(&about).unwrap_or(0) })
}

fn address_of(answer: &Reply) -> Option<String> {
    let words = texts(answer)?;
    let [host, port] = words.as_slice() else { return None };
    let port: u16 = port.parse().ok()?;
    let is_host = !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_graphic());
    is_host.then(|| if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

/// Of the fields in `SENTINEL MASTER`.
fn epoch_of(answer: &Reply) -> Option<u64> {
    let words = texts(answer)?;
    let field = words.chunks_exact(2).find(|pair| pair[0] == "config-epoch")?;
    field[1].parse().ok()
}

/// The words of an answer that is nothing else.
fn texts(answer: &Reply) -> Option<Vec<String>> {
    let Reply::Array(items) = answer else { return None };
    let text = |item: &Reply| {
        let Reply::Bulk(bytes) = item else { return None };
        Some(String::from_utf8_lossy(bytes).into_owned())
    };
    items.iter().map(text).collect()
}

/// An error where the Redis at the other end is not a master: the Sentinels may name one that they are still promoting.
pub(super) async fn check_role(client: &mut UpstreamClient) -> io::Result<()> {
    let answer = client.call_ok(&["ROLE"]).await?;
    let Reply::Array(items) = &answer else {
        return Err(io::Error::other(format!("ROLE answered {answer:?}")));
    };
    match items.first() == Some(&Reply::bulk("master")) {
        true => Ok(()),
        false => Err(io::Error::other("the Redis that the Sentinels name is no master yet")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Reply {
        Reply::Array(words.iter().map(Reply::bulk).collect())
    }

    #[test]
    fn the_newest_knowledge_counts_then_the_number() {
        let chosen_of = |namings: &[(&str, u64)]| {
            let namings: Vec<Naming> = namings
                .iter()
                .map(|(address, epoch)| Naming { address: (*address).to_owned(), epoch: *epoch })
                .collect();
            chosen(&namings).map(str::to_owned)
        };
        assert_eq!(chosen_of(&[]), None);
        assert_eq!(chosen_of(&[("old", 1), ("new", 2)]).unwrap(), "new");
        assert_eq!(chosen_of(&[("old", 1), ("old", 1), ("new", 2)]).unwrap(), "new");
        assert_eq!(chosen_of(&[("a", 1), ("b", 1), ("b", 1)]).unwrap(), "b");
        assert_eq!(chosen_of(&[("a", 1), ("b", 1)]).unwrap(), "a");
    }

    #[test]
    fn answers_are_read() {
        assert_eq!(address_of(&words(&["db", "1"])).unwrap(), "db:1");
        assert_eq!(address_of(&words(&["::1", "6379"])).unwrap(), "[::1]:6379");
        for wrong in
            [&["", "1"][..], &["a b", "1"], &["\x1b[31m", "1"], &["db", "99999"], &["db", "x"], &["db"]]
        {
            assert_eq!(address_of(&words(wrong)), None, "{wrong:?}");
        }
        assert_eq!(epoch_of(&words(&["name", "main", "config-epoch", "7"])), Some(7));
        assert_eq!(epoch_of(&words(&["db", "1"])), None);
    }
}
