//! Pass-through to the upstream Redis.
//!
//! # Layout
//!
//! - [`own`]: over a connection that belongs to the client alone
//! - [`shared`]: over a connection shared with other clients
//! - [`fast_path`]: runs of pipelined commands that simply pass
//! - [`reply_edit`]: the few replies that do not pass as they are

pub mod fast_path;
pub mod own;
pub mod reply_edit;
pub mod shared;

use crate::tier1::own_connection::{OwnConnection, UNSENT_BYTES_MAX};
use own::StreamedCommand;
use shared::SharedUpstream;

/// One client's connections to the upstream.
#[derive(Debug, Default)]
pub(in crate::server) struct UpstreamConnections {
    /// The client's own; opened when first needed.
    pub(in crate::server) own: Option<Box<OwnConnection>>,
    pub(in crate::server) shared: SharedUpstream,
    /// A large command that is arriving in pieces.
    pub(in crate::server) streamed: Option<StreamedCommand>,
    /// What has come of it, where all of it must be seen before it is passed on.
    pub(in crate::server) gathered: Vec<u8>,
}

impl UpstreamConnections {
    /// Whether this client uses none.
    pub(in crate::server) fn are_none(&self) -> bool {
        self.own.is_none() && !self.shared.is_used()
    }

    /// Whether another command may be sent.
    pub(in crate::server) fn has_room(&self) -> bool {
        self.shared.has_room() && self.own.as_ref().is_none_or(|own| own.unsent_bytes() < UNSENT_BYTES_MAX)
    }

    pub(in crate::server) fn held_bytes(&self) -> usize {
        let own = self.own.as_ref().map_or(0, |own| own.held_bytes());
        own + self.shared.due_bytes() + self.gathered.capacity()
    }
}
