//! The connection of a program to a node: RESP3 over TCP or TLS, one command at a time or a bounded batch.
//!
//! Every method may be dropped before it is done: replies that are still due are read and dropped before the next command.

use super::reply::{NotResp, Reply};
use bytes::BytesMut;
use rustls::pki_types::ServerName;
use rustls::ClientConfig;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long a node may take for all of the first answers of a connection. A process that stands still accepts connections by its kernel.
pub(crate) const GREETING_WITHIN: Duration = Duration::from_secs(5);
/// How long a node may take for a question, which may be asked at the next one.
pub(crate) const QUESTION_WITHIN: Duration = Duration::from_secs(10);
/// How long a node may take for an answer, beyond what it was asked to wait.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(30);
const READ_BYTES: usize = 64 << 10;
/// Of replies that are not whole yet.
const BUFFER_BYTES_MAX: usize = 32 << 20;
/// Pushes that came between replies. A program that asks for them reads them.
const PUSHES_MAX: usize = 10_000;
/// The first byte of a TLS alert, with which a TLS server answers a plain command.
const TLS_ALERT: u8 = 0x15;

/// How to speak TLS to a node.
#[derive(Clone)]
pub(crate) struct Tls {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

/// A plain connection or one with TLS.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send + Sync {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Stream for T {}

pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    received: BytesMut,
    pushes: VecDeque<Vec<Reply>>,
    /// Replies still to come; more than one where an asker has gone.
    due: usize,
    is_writing: bool,
}

impl Connection {
    pub(crate) async fn open(address: &str, tls: Option<&Tls>) -> io::Result<Connection> {
        let stream = timeout(CONNECT_WITHIN, connect(address, tls)).await.map_err(|_| late())??;
        Ok(Connection::over(stream))
    }

    /// Over a stream that is open already.
    pub(crate) fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static) -> Connection {
        Connection {
            stream: Box::new(stream),
            received: BytesMut::new(),
            pushes: VecDeque::new(),
            due: 0,
            is_writing: false,
        }
    }

    pub(crate) async fn ask<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        self.ask_within(words, ANSWER_WITHIN).await
    }

    pub(crate) async fn ask_within<W: AsRef<[u8]>>(
        &mut self,
        words: &[W],
        within: Duration,
    ) -> io::Result<Reply> {
        let answer = async {
            let stale = self.due;
            self.send(words).await?;
            self.drop_replies(stale).await?;
            self.reply().await
        };
        timeout(within, answer).await.map_err(|_| late())?
    }

    /// Sends all, then reads all answers, in their order. For batches that fit into the buffers of a socket.
    pub(crate) async fn ask_all(&mut self, commands: &[Vec<Vec<u8>>]) -> io::Result<Vec<Reply>> {
        let mut replies = Vec::with_capacity(commands.len());
        self.ask_each(commands, |reply| replies.push(reply)).await?;
        Ok(replies)
    }

    /// The same; each reply is handed on as it comes, and need not be kept.
    pub(crate) async fn ask_each(
        &mut self,
        commands: &[Vec<Vec<u8>>],
        mut each: impl FnMut(Reply),
    ) -> io::Result<()> {
        let answers = async {
            let stale = self.due;
            for words in commands {
                self.send(words).await?;
            }
            self.drop_replies(stale).await?;
            for _ in commands {
                each(self.reply().await?);
            }
            Ok(())
        };
        timeout(QUESTION_WITHIN, answers).await.map_err(|_| late())?
    }

    /// A command whose answer is a push, as that to `SUBSCRIBE` is. An error is answered as a reply.
    pub(crate) async fn send_for_push<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<Reply> {
        let answer = async {
            self.write(words).await?;
            self.frame().await
        };
        timeout(QUESTION_WITHIN, answer).await.map_err(|_| late())?
    }

    /// The next push, whenever it comes.
    pub(crate) async fn push(&mut self) -> io::Result<Vec<Reply>> {
        loop {
            if let Some(push) = self.pushes.pop_front() {
                return Ok(push);
            }
            match self.frame().await? {
                Reply::Push(push) => return Ok(push),
                Reply::Nil
                | Reply::Error(_)
                | Reply::Int(_)
                | Reply::Text(_)
                | Reply::Array(_)
                | Reply::Map(_) => self.due = self.due.saturating_sub(1),
            }
        }
    }

    async fn send<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        self.write(words).await?;
        self.due += 1;
        Ok(())
    }

    async fn write<W: AsRef<[u8]>>(&mut self, words: &[W]) -> io::Result<()> {
        // After half a command nothing that is sent makes sense.
        if std::mem::replace(&mut self.is_writing, true) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.stream.write_all(&frame(words)).await?;
        self.stream.flush().await?;
        self.is_writing = false;
        Ok(())
    }

    async fn drop_replies(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.reply().await?;
        }
        Ok(())
    }

    /// The next reply; pushes before it are kept.
    async fn reply(&mut self) -> io::Result<Reply> {
        loop {
            let reply = self.frame().await?;
            match reply {
                Reply::Push(push) => {
                    if self.pushes.len() == PUSHES_MAX {
                        self.pushes.pop_front();
                    }
                    self.pushes.push_back(push);
                }
                Reply::Nil
                | Reply::Error(_)
                | Reply::Int(_)
                | Reply::Text(_)
                | Reply::Array(_)
                | Reply::Map(_) => {
                    self.due = self.due.saturating_sub(1);
                    return Ok(reply);
                }
            }
        }
    }

    /// Loses nothing where it is dropped.
    async fn frame(&mut self) -> io::Result<Reply> {
        loop {
            if self.received.first() == Some(&TLS_ALERT) {
                return Err(invalid("the node speaks TLS: give --tls-ca"));
            }
            if let Some((reply, length)) = Reply::parse(&self.received).map_err(|NotResp| no_resp())? {
                let _ = self.received.split_to(length);
                return Ok(reply);
            }
            if self.received.len() > BUFFER_BYTES_MAX {
                return Err(no_resp());
            }
            self.received.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

fn frame<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut frame = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        frame.extend_from_slice(format!("${}\r\n", word.as_ref().len()).as_bytes());
        frame.extend_from_slice(word.as_ref());
        frame.extend_from_slice(b"\r\n");
    }
    frame
}

async fn connect(address: &str, tls: Option<&Tls>) -> io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address).await.map_err(|error| {
        let is_no_address = error.kind() == io::ErrorKind::InvalidInput;
        if is_no_address {
            io::Error::new(error.kind(), "no such address; use host:port")
        } else {
            error
        }
    })?;
    stream.set_nodelay(true)?;
    let Some(Tls { config, name }) = tls else { return Ok(Box::new(stream)) };
    let connected = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await;
    Ok(Box::new(connected.map_err(explain_handshake)?))
}

/// A node without TLS answers the handshake with an error in RESP.
fn explain_handshake(error: io::Error) -> io::Error {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => invalid("the node does not speak TLS: leave out --tls-ca"),
        _ => error,
    }
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}

fn no_resp() -> io::Error {
    invalid("what answers is no Redfence node")
}

pub(crate) fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer in time")
}
