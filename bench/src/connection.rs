//! A connection that waits for each answer, for what is asked once or timed one by one.

use crate::resp;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(crate) struct BlockingConnection {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl BlockingConnection {
    /// Gives up on connecting, and on every answer, after `patience`.
    pub(crate) fn open(address: SocketAddr, patience: Duration) -> std::io::Result<BlockingConnection> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        Ok(BlockingConnection { stream, unread: Vec::new() })
    }

    pub(crate) fn ask(&mut self, words: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        self.send(words)?;
        self.receive()
    }

    pub(crate) fn send(&mut self, words: &[&[u8]]) -> std::io::Result<()> {
        let mut request = Vec::new();
        resp::encode(words, &mut request);
        self.stream.write_all(&request)
    }

    /// The next reply or push.
    pub(crate) fn receive(&mut self) -> std::io::Result<Vec<u8>> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(len) = resp::reply_len(&self.unread) {
                return Ok(self.unread.drain(..len).collect());
            }
            match self.stream.read(&mut chunk)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => self.unread.extend_from_slice(&chunk[..count]),
            }
        }
    }
}
