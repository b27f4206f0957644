//! The operators' listener: `/health`, `/ready` and `/metrics` over HTTP, or HTTPS with TLS, for probes and for Prometheus.
//!
//! It only reads, knows no other path, and closes after each answer.
//!
//! # Caveats
//!
//! There is no password here: bind it to loopback or to a network of your own.

mod metrics;

use crate::server::client::registry::network;
use crate::server::ServerState;
use crate::tls::acceptor::Acceptor;
use crate::tls::stream::ClientStream;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Probes at one time. One more ends the oldest of them: an honest one is answered at once and gone.
const PROBES_MAX: usize = 128;
/// A request's head. A longer one is refused.
const HEAD_BYTES_MAX: usize = 4096;
/// How long a probe may take, its TLS handshake with it.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Answers for ever; with TLS where there is an acceptor.
pub async fn accept(server: Arc<ServerState>, listener: TcpListener, tls: Option<Arc<Acceptor>>) {
    let mut probes: VecDeque<JoinHandle<()>> = VecDeque::with_capacity(PROBES_MAX);
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                make_room(&mut probes);
                let (server, tls) = (Arc::clone(&server), tls.clone());
                probes.push_back(tokio::spawn(async move {
                    // Whether it was answered, failed or took too long: the connection ends.
                    let _ = tokio::time::timeout(
                        ANSWER_WITHIN,
                        answer(&server, stream, network(address.ip()), tls),
                    )
                    .await;
                }));
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed on the admin listener");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// Room for one more: those that are done go first, then the one that has been silent for longest.
fn make_room(probes: &mut VecDeque<JoinHandle<()>>) {
    if probes.len() >= PROBES_MAX {
        probes.retain(|probe| !probe.is_finished());
    }
    if probes.len() >= PROBES_MAX {
        if let Some(oldest) = probes.pop_front() {
            oldest.abort();
        }
    }
}

async fn answer(
    server: &ServerState,
    stream: TcpStream,
    from: IpAddr,
    tls: Option<Arc<Acceptor>>,
) -> std::io::Result<()> {
    let mut stream = match tls {
        None => ClientStream::Plain(stream),
        Some(tls) => ClientStream::Tls(tls.accept(stream, from).await?),
    };
    let head = read_head(&mut stream).await?;
    let (status, body) = match request_path(&head) {
        Some(path) => page(server, path),
        None => ("400 Bad Request", "only GET is known here\n".to_string()),
    };
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(response.as_bytes()).await?;
    stream.flush().await?;
    stream.shutdown().await
}

/// Reads until the empty line, or as much as a head may have.
async fn read_head(stream: &mut ClientStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(512);
    let mut piece = [0; 512];
    while head.len() < HEAD_BYTES_MAX && !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut piece).await? {
            0 => break,
            count => head.extend_from_slice(&piece[..count]),
        }
    }
    Ok(head)
}

fn request_path(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("GET"), Some(path), Some(version)) if version.starts_with("HTTP/1.") => Some(path),
        _ => None,
    }
}

fn page(server: &ServerState, path: &str) -> (&'static str, String) {
    match path {
        "/health" => ("200 OK", "alive\n".to_string()),
        "/ready" if server.tier2.status().quorum => ("200 OK", "ready\n".to_string()),
        "/ready" if server.tier2.is_quarantined() => {
            ("503 Service Unavailable", "quarantined: this node differs from the others\n".to_string())
        }
        "/ready" => {
            ("503 Service Unavailable", "no quorum: the correctness tier does not serve\n".to_string())
        }
        "/metrics" => ("200 OK", metrics::page(server)),
        _ => ("404 Not Found", "known here: /health /ready /metrics\n".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_request_line() {
        assert_eq!(request_path(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some("/metrics"));
        for bad in [&b""[..], b"POST / HTTP/1.1\r\n\r\n", b"GET /", b"\xff\xfe\r\n\r\n", b"GET / RESP\r\n"] {
            assert_eq!(request_path(bad), None, "{bad:?}");
        }
    }
}
