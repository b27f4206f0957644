//! The usual case of a proxy, in few steps: commands that came together and all pass to the shared connection as they are. Part of
//! [`Connection`].
//!
//! [`CommandContext::pass_run`] looks at the bytes of whole commands at the front of what came and stages as many as it is sure of in one piece.
//! Sure is what [`crate::server::routing::dispatch`] would decide in the same way: anything unusual in the state of the client, in the frame, in the name or in
//! the routes of its key is left to it, so this file holds no rule of its own. Called by `connection` before each command.

use crate::resp::canonical::whole_frame;
use crate::server::context::CommandContext;

impl CommandContext {
    /// Stages the commands at the front of `bytes` that pass by the shared connection for certain; answers how many bytes they have.
    pub(in crate::server) fn pass_run(&mut self, bytes: &[u8]) -> usize {
        if bytes.first() != Some(&b'*') || !self.may_pass_runs() {
            return 0;
        }
        let Some(room) = self.upstream.shared.room() else { return 0 };
        let (mut len, mut commands, mut last) = (0, 0, &b""[..]);
        while commands < room.commands && len < room.bytes {
            match whole_frame(&bytes[len..]) {
                Some(frame)
                    if frame.len <= room.frame_bytes && self.is_sure_to_pass(frame.name, frame.first) =>
                {
                    len += frame.len;
                    commands += 1;
                    last = frame.name;
                }
                Some(_) | None => break,
            }
        }
        if commands > 0 {
            self.share_run(&bytes[..len], commands);
            self.commands_run += commands;
            self.last_command.note(last, None);
            if let Some(sessions) = &self.client.sessions {
                self.server.session_keepalive.note_command(sessions, self.read_us / 1_000);
            }
        }
        len
    }

    /// Whether nothing in the state of the client asks for a second look. No command of a run changes it.
    fn may_pass_runs(&self) -> bool {
        self.may_share_now()
            && self.client.authenticated
            && self.may_do_everything()
            && self.client.tracking.is_none()
            && !self.client.is_listening_only()
            && self.may_pass_by_routes()
    }
}
