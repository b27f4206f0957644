//! Sentinels: who is the master. Asked when a connection is made, and every second while it lasts.

use super::client::UpstreamClient;
use super::stream;
use crate::tls::upstream::Connector;
use redfence_core::reply::Reply;
use std::io;
use std::time::Duration;

/// From the first byte of a connection to the answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(700);

/// The address that the first Sentinel to answer names. One that does not answer goes to the end of the list.
pub(super) async fn master_address(
    sentinels: &mut [String],
    master: &str,
    tls: Option<&Connector>,
) -> io::Result<String> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "there are none");
    for _ in 0..sentinels.len() {
        let asked = tokio::time::timeout(ANSWER_WITHIN, ask(&sentinels[0], master, tls)).await;
        match asked.unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))) {
            Ok(address) => return Ok(address),
            Err(error) => last = io::Error::new(error.kind(), format!("Sentinel {}: {error}", sentinels[0])),
        }
        sentinels.rotate_left(1);
    }
    Err(last)
}

async fn ask(sentinel: &str, master: &str, tls: Option<&Connector>) -> io::Result<String> {
    let mut client = UpstreamClient::over(stream::connect(sentinel, tls).await?);
    let answer = client.call_ok(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master]).await?;
    if answer == Reply::Nil {
        return Err(io::Error::other(format!("it knows no master '{master}'")));
    }
    match texts(&answer).as_deref() {
        Some([host, port]) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        Some([host, port]) => Ok(format!("{host}:{port}")),
        Some(_) | None => Err(io::Error::other(format!("it answered {answer:?}, which is no address"))),
    }
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
