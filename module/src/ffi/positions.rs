//! Where the keys of a command are, for the commands whose keys a plain range cannot tell: counted ones, and the inner command
//! of `FENCE.CALL`. Redis asks by calling the command in a special way; ACLs and the cluster's router go by the answer.
//!
//! The key specs in `register.rs` say the same, but 7.0 does not use them for routing, and counts them wrongly where keys are two
//! words apart.

use super::{api, Arg, Ctx};
use redfence_core::grammar::fence::{FenceCall, CALL};
use redfence_core::grammar::table::{self, KeyPlaces, Row, Verb};
use redfence_core::grammar::words::decimal;
use redis_module::raw;
use std::ffi::c_int;

/// What our own keys are used for: looked at and changed.
const OURS: u32 =
    raw::REDISMODULE_CMD_KEY_RW | raw::REDISMODULE_CMD_KEY_ACCESS | raw::REDISMODULE_CMD_KEY_UPDATE;

/// Whether Redis has to ask for the keys of this command.
pub(super) fn are_asked_for(row: &Row) -> bool {
    matches!(row.keys, KeyPlaces::Counted { .. }) || row.verb == Verb::FenceCall
}

impl Ctx {
    /// Whether Redis asks where the keys are, and does not want the command run.
    pub(super) fn asks_for_positions(&self) -> bool {
        // SAFETY: the context is live.
        unsafe { api!(RedisModule_IsKeysPositionRequest(self.raw())) != 0 }
    }

    pub(super) fn answer_positions(&self, argv: &[Arg]) {
        let Some(row) = argv.first().and_then(|name| table::find(name.as_ref())) else {
            return;
        };
        match row.keys {
            KeyPlaces::Counted { step } => {
                counted(argv, step.into()).for_each(|at| self.key_at(at, OURS as c_int));
            }
            KeyPlaces::First | KeyPlaces::None => {
                self.key_at(1, OURS as c_int);
                self.answer_inner_positions(argv);
            }
        }
    }

    fn key_at(&self, at: usize, flags: c_int) {
        // SAFETY: the context is one of a position request, and Redis checks the position.
        unsafe { api!(RedisModule_KeyAtPosWithFlags(self.raw(), at as c_int, flags)) };
    }

    /// The keys of the command inside `FENCE.CALL`; none where Redis does not know it.
    fn answer_inner_positions(&self, argv: &[Arg]) {
        let inner = argv.get(FenceCall::COMMAND_AT..).unwrap_or(&[]);
        // Its own kind is refused when it runs; following it here would let a client choose how deep we go.
        if inner.first().is_none_or(|name| name.as_ref().eq_ignore_ascii_case(CALL.as_bytes())) {
            return;
        }
        let (mut len, mut flags) = (0, std::ptr::null_mut());
        // SAFETY: `Arg` is transparent over the pointer Redis wants, and Redis only reads the vector. It answers two arrays
        // of `len` numbers which are ours to free, or NULL.
        unsafe {
            let positions = api!(RedisModule_GetCommandKeysWithFlags(
                self.raw(),
                inner.as_ptr().cast_mut().cast(),
                inner.len() as c_int,
                &mut len,
                &mut flags
            ));
            if positions.is_null() {
                return;
            }
            for at in 0..len as usize {
                let flags = if flags.is_null() { OURS as c_int } else { *flags.add(at) };
                self.key_at(*positions.add(at) as usize + FenceCall::COMMAND_AT, flags);
            }
            api!(RedisModule_Free(positions.cast()));
            if !flags.is_null() {
                api!(RedisModule_Free(flags.cast()));
            }
        }
    }
}

/// The count is in the first argument; what it promises beyond the end is not there.
fn counted(argv: &[Arg], step: usize) -> impl Iterator<Item = usize> {
    let count = argv.get(1).and_then(|word| decimal(word.as_ref())).unwrap_or(0);
    (2..argv.len()).step_by(step).take(count as usize)
}
