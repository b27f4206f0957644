//! The operators' listener: `/health`, `/ready` and `/metrics` over plain HTTP, for probes and for Prometheus.
//!
//! It only reads, knows no other path, and closes after each answer. What it shows is what `INFO redfence` shows.
//!
//! # Caveats
//!
//! There is no password here: bind it to loopback or to a network of your own.

use crate::server::commands::info;
use crate::server::ServerState;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Probes at one time. One more waits in the backlog.
const PROBES_MAX: usize = 32;
/// A request's head. A longer one is refused.
const HEAD_BYTES_MAX: usize = 4096;
const HEAD_WITHIN: Duration = Duration::from_secs(5);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Answers for ever.
pub async fn accept(server: Arc<ServerState>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(PROBES_MAX));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(HEAD_WITHIN, answer(&server, stream)).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accept failed on the admin listener");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn answer(server: &ServerState, mut stream: TcpStream) -> std::io::Result<()> {
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
    stream.shutdown().await
}

/// Reads until the empty line, or as much as a head may have.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
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
        "/metrics" => ("200 OK", metrics(&info::redfence_section(server))),
        _ => ("404 Not Found", "known here: /health /ready /metrics\n".to_string()),
    }
}

/// The numbers of an INFO section as Prometheus reads them; words are left out.
fn metrics(section: &str) -> String {
    let mut text = String::with_capacity(section.len() * 2);
    for line in section.lines() {
        if let Some((name, value)) = line.split_once(':') {
            if value.parse::<f64>().is_ok() {
                let _ = writeln!(text, "redfence_{name} {value}");
            }
        }
    }
    text
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

    #[test]
    fn metrics_are_the_numbers_of_info() {
        let text = metrics("node_role:leader\r\nlocks_held:7\r\nload:0.5\r\n");
        assert_eq!(text, "redfence_locks_held 7\nredfence_load 0.5\n");
    }
}
