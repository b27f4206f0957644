//! A RESP2 connection for an operator's program: one command, one reply, nothing pipelined, everything bounded.

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

const CONNECT_WITHIN: Duration = Duration::from_secs(10);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Longest line, string and array that is taken from a server.
const LINE_BYTES_MAX: u64 = 64 << 10;
const BULK_BYTES_MAX: usize = 8 << 20;
const ITEMS_MAX: usize = 64;

/// A reply. What no command of ours answers is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BackupReply {
    Error(String),
    Int(i64),
    Text(Vec<u8>),
    Array(Vec<BackupReply>),
}

/// How to speak TLS to a member.
pub(crate) struct BackupTls {
    pub(crate) config: ClientConfig,
    pub(crate) name: ServerName<'static>,
}

/// Who we are to the member.
pub(crate) struct Login<'a> {
    pub(crate) user: Option<&'a str>,
    pub(crate) password: &'a str,
}

/// A plain connection or one with TLS.
trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

pub(crate) struct BackupConnection {
    stream: BufReader<Box<dyn Stream>>,
}

impl BackupConnection {
    pub(crate) fn open(
        address: &str,
        tls: Option<BackupTls>,
        login: Option<&Login<'_>>,
    ) -> Result<BackupConnection, String> {
        let stream = connect(address, tls).map_err(|error| format!("cannot reach {address}: {error}"))?;
        let mut connection = BackupConnection { stream: BufReader::with_capacity(64 << 10, stream) };
        if let Some(Login { user, password }) = login {
            let words: Vec<&str> = ["AUTH"].into_iter().chain(*user).chain([*password]).collect();
            match connection.ask(&words)? {
                BackupReply::Error(line) => return Err(format!("{address} refuses the password: {line}")),
                BackupReply::Int(_) | BackupReply::Text(_) | BackupReply::Array(_) => {}
            }
        }
        Ok(connection)
    }

    pub(crate) fn ask(&mut self, words: &[&str]) -> Result<BackupReply, String> {
        let lost = |error: io::Error| format!("the connection is lost: {error}");
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        let out = self.stream.get_mut();
        out.write_all(&request).and_then(|()| out.flush()).map_err(lost)?;
        read_answer(&mut self.stream, true).map_err(lost)
    }
}

fn connect(address: &str, tls: Option<BackupTls>) -> io::Result<Box<dyn Stream>> {
    let mut stream = connect_tcp(address)?;
    let Some(BackupTls { config, name }) = tls else { return Ok(Box::new(stream)) };
    let mut session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    // Now, so that a certificate that is not trusted is reported as such.
    while session.is_handshaking() {
        session.complete_io(&mut stream).map_err(explain_handshake)?;
    }
    Ok(Box::new(StreamOwned::new(session, stream)))
}

/// A node without TLS answers the handshake with an error in RESP.
fn explain_handshake(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => {
            io::Error::new(io::ErrorKind::InvalidData, "the node does not speak TLS: leave out --tls-ca")
        }
        _ => error,
    }
}

fn connect_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "no such address; use host:port");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_WITHIN) {
            Ok(stream) => {
                stream.set_read_timeout(Some(ANSWER_WITHIN))?;
                stream.set_write_timeout(Some(ANSWER_WITHIN))?;
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The first byte of a TLS alert, with which a TLS server answers a plain command.
const TLS_ALERT: u8 = 0x15;

fn read_answer(from: &mut impl BufRead, may_nest: bool) -> io::Result<BackupReply> {
    if from.fill_buf()?.first() == Some(&TLS_ALERT) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the node speaks TLS: give --tls-ca"));
    }
    let line = read_line(from)?;
    let (kind, rest) = line.split_first().ok_or_else(no_resp)?;
    let text = std::str::from_utf8(rest).map_err(|_| no_resp())?;
    let number = || text.parse::<i64>().map_err(|_| no_resp());
    match kind {
        b'-' => Ok(BackupReply::Error(text.to_owned())),
        b'+' => Ok(BackupReply::Text(rest.to_vec())),
        b':' => Ok(BackupReply::Int(number()?)),
        b'$' => {
            let length = usize::try_from(number()?).ok().filter(|length| *length <= BULK_BYTES_MAX);
            let mut bytes = vec![0; length.ok_or_else(no_resp)? + 2];
            from.read_exact(&mut bytes)?;
            if bytes.split_off(bytes.len() - 2) != b"\r\n" {
                return Err(no_resp());
            }
            Ok(BackupReply::Text(bytes))
        }
        b'*' if may_nest => {
            let count = usize::try_from(number()?).ok().filter(|count| *count <= ITEMS_MAX);
            let items = (0..count.ok_or_else(no_resp)?).map(|_| read_answer(from, false));
            Ok(BackupReply::Array(items.collect::<io::Result<_>>()?))
        }
        _ => Err(no_resp()),
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !line.ends_with(b"\r\n") {
        return Err(no_resp());
    }
    line.truncate(line.len() - 2);
    Ok(line)
}

fn no_resp() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what answers is no Redfence node")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &str) -> io::Result<BackupReply> {
        read_answer(&mut bytes.as_bytes(), true)
    }

    #[test]
    fn replies_of_the_backup_commands_are_read() {
        let piece = "*3\r\n$5\r\nready\r\n:12\r\n$4\r\na\r\nb\r\n";
        let text = |text: &str| BackupReply::Text(text.as_bytes().to_vec());
        assert_eq!(
            read(piece).unwrap(),
            BackupReply::Array(vec![text("ready"), BackupReply::Int(12), text("a\r\nb")])
        );
        assert_eq!(read("-UNAVAILABLE x\r\n").unwrap(), BackupReply::Error("UNAVAILABLE x".to_owned()));
    }

    #[test]
    fn what_is_too_large_or_no_resp_is_refused_without_memory_for_it() {
        for bad in ["$9999999999\r\n", "*1000\r\n", "HTTP/1.1 400\r\n", "*1\r\n*1\r\n:1\r\n", "", ":1"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }
}
