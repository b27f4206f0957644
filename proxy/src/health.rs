//! `redfence health`: asks the admin address of a running node, so that an image needs no HTTP client for its health check.
//!
//! # Caveats
//!
//! It does not speak TLS. An admin listener with TLS answers plain bytes with an alert: that shows a process that lives, and is not
//! enough to tell whether it is ready.

use crate::cli::container::HealthArgs;
use crate::cli::output::say;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// A health check of a container has some seconds in all.
const WITHIN: Duration = Duration::from_secs(3);
const ANSWER_BYTES_MAX: usize = 4096;
/// The first byte of a TLS alert.
const TLS_ALERT: u8 = 0x15;

pub fn run(args: &HealthArgs) -> Result<(), String> {
    let path = if args.ready { "/ready" } else { "/health" };
    let address = args.admin.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
    let address = address.ok_or_else(|| format!("'{}' is no address; use host:port", args.admin))?;
    let bytes = get(reachable(address), path).map_err(|error| format!("no answer at {address}: {error}"))?;
    say(&judge(&bytes, args.ready)?);
    Ok(())
}

/// A node that listens on every address is asked on loopback.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<Vec<u8>> {
    let give_up = Instant::now() + WITHIN;
    let mut stream = TcpStream::connect_timeout(&address, WITHIN)?;
    stream.set_write_timeout(Some(WITHIN))?;
    stream.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = Vec::new();
    while answer.len() < ANSWER_BYTES_MAX {
        // In all, not for each byte.
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            // A listener with TLS may close hard behind its alert.
            Err(error) if answer.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(answer)
}

/// The line to print, or the reason why the check fails.
fn judge(answer: &[u8], is_about_ready: bool) -> Result<String, String> {
    if answer.first() == Some(&TLS_ALERT) {
        return if is_about_ready {
            Err("the admin address speaks TLS: ask /ready over HTTPS instead".to_owned())
        } else {
            Ok("alive (TLS)".to_owned())
        };
    }
    let text = String::from_utf8_lossy(answer);
    let (head, body) = text.split_once("\r\n\r\n").ok_or("what answers is no Redfence node")?;
    let line = body.lines().next().unwrap_or_default().to_owned();
    match head.split(' ').nth(1) {
        Some("200") => Ok(line),
        Some(_) | None => Err(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_200_passes_and_any_other_fails_with_its_reason() {
        assert_eq!(judge(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nalive\n", false), Ok("alive".to_owned()));
        let refused = judge(b"HTTP/1.1 503 Service Unavailable\r\n\r\nno quorum\n", true);
        assert_eq!(refused, Err("no quorum".to_owned()));
        assert!(judge(b"", false).is_err());
        assert!(judge(b"+PONG\r\n", false).is_err());
    }

    #[test]
    fn tls_shows_life_and_not_readiness() {
        assert!(judge(&[TLS_ALERT, 3, 3, 0, 2, 2, 50], false).is_ok());
        assert!(judge(&[TLS_ALERT, 3, 3, 0, 2, 2, 50], true).is_err());
    }

    #[test]
    fn a_node_on_every_address_is_asked_on_loopback() {
        assert_eq!(reachable("0.0.0.0:80".parse().unwrap()), "127.0.0.1:80".parse().unwrap());
        assert_eq!(reachable("[::]:80".parse().unwrap()), "[::1]:80".parse().unwrap());
        assert_eq!(reachable("10.0.0.1:80".parse().unwrap()), "10.0.0.1:80".parse().unwrap());
    }
}
