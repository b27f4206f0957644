//! One connection of one client task: a request, and its reply or the loss of the connection.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::run_state::NodeEndpoint;
use crate::resp::{encode, parse, Value};

const CONNECT_WITHIN: Duration = Duration::from_millis(500);

pub struct ClientConnection {
    stream: TcpStream,
    buffer: Vec<u8>,
    pub endpoint: Arc<NodeEndpoint>,
}

/// The connection broke or timed out: the outcome of the request is unknown.
#[derive(Debug)]
pub struct ConnectionLost;

impl ClientConnection {
    pub async fn open(endpoint: Arc<NodeEndpoint>) -> Option<ClientConnection> {
        let stream = timeout(CONNECT_WITHIN, TcpStream::connect(endpoint.address)).await.ok()?.ok()?;
        stream.set_nodelay(true).ok()?;
        // Closed with RST, as by a killed client: the node must notice by itself.
        stream.set_zero_linger().ok()?;
        Some(ClientConnection { stream, buffer: Vec::with_capacity(512), endpoint })
    }

    /// After an error the connection must be dropped.
    pub async fn ask(
        &mut self,
        words: &[impl AsRef<[u8]>],
        within: Duration,
    ) -> Result<Value, ConnectionLost> {
        let endpoint = Arc::clone(&self.endpoint);
        let cut = endpoint.cut.notified();
        tokio::select! {
            reply = timeout(within, self.exchange(words)) => reply.ok().flatten().ok_or(ConnectionLost),
            () = cut => Err(ConnectionLost),
        }
    }

    async fn exchange(&mut self, words: &[impl AsRef<[u8]>]) -> Option<Value> {
        self.stream.write_all(&encode(words)).await.ok()?;
        loop {
            if let Some((value, used)) = parse(&self.buffer).ok()? {
                self.buffer.drain(..used);
                return Some(value);
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }
}
