//! Limits in bytes, each derived from the one above it. Counts do not bound memory; bytes do.
//!
//! A request is checked where it enters a node, so that everything behind it may rely on the limit: an entry holds the largest
//! request, a peer frame holds the largest entry, a snapshot holds whatever the state may hold, in pieces of one size. The
//! assertions below tie the numbers together; a change that breaks the chain does not compile.
//!
//! What decides answers of the replicated machine is here too, so every node of a cluster must run with the same numbers.

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// One word of a command that Redfence itself answers.
pub const WORD_BYTES_MAX: usize = 64 * KIB;
/// The body of a script, the one word that may be longer.
pub const SCRIPT_BYTES_MAX: usize = MIB;
/// Words of one command.
pub const WORDS_MAX: usize = 1024;

/// Longest name of a key.
pub const KEY_BYTES_MAX: usize = 64 * KIB;
/// Longest string value, and longest element of a collection. A command carries less; `APPEND`, `SETRANGE` and scripts get here.
pub const STRING_BYTES_MAX: usize = MIB;
/// A collection: the bytes of its elements and [`ELEMENT_OVERHEAD_BYTES`] for each.
pub const COLLECTION_BYTES_MAX: usize = 16 * MIB;
/// What an element of a collection costs besides its bytes. A field of a hash counts as two elements, its name and its value; a
/// member of a sorted set as two, itself and its score.
pub const ELEMENT_OVERHEAD_BYTES: usize = 64;

/// What a key costs besides its name and its value: its record, its places in indexes.
pub const KEY_OVERHEAD_BYTES: usize = 160;

/// One command or transaction with its watched names (or one script's effects and reply), as logged.
pub const REQUEST_BYTES_MAX: usize = 4 * MIB;
/// What an entry adds to the one request in it: version, stamp, origin, numbers.
pub const ENTRY_OVERHEAD_BYTES: usize = 256;
/// One entry of the log. Small requests share an entry; the largest request has one of its own.
pub const ENTRY_BYTES_MAX: usize = REQUEST_BYTES_MAX + ENTRY_OVERHEAD_BYTES;
/// Entries in one append message, unless a single entry is larger.
pub const APPEND_BYTES_MAX: usize = MIB;
/// One frame between peers.
pub const PEER_FRAME_BYTES_MAX: usize = 8 * MIB;
/// What a frame adds to its payload: lengths, kinds, the fields of a raft message.
pub const PEER_FRAME_OVERHEAD_BYTES: usize = 64 * KIB;

/// The reply of a command that goes through the log, or of a whole transaction.
pub const LOGGED_REPLY_BYTES_MAX: usize = 2 * MIB;
/// The replies of all commands of one entry. Beyond it a command that would show much is refused as if it had come at a bad moment.
pub const ENTRY_REPLIES_BYTES_MAX: usize = 32 * MIB;
/// The reply of a command that only reads.
pub const READ_REPLY_BYTES_MAX: usize = 8 * MIB;
/// Replies kept for retries: one of them, those of one node, those of all nodes.
pub const REMEMBERED_REPLY_BYTES_MAX: usize = 16 * KIB;
pub const REMEMBERED_BYTES_PER_ORIGIN_MAX: usize = 8 * MIB;
pub const REMEMBERED_BYTES_MAX: usize = 32 * MIB;

/// Replies that wait for one client to read them, beyond the one being sent. Further reads of that client wait.
pub const UNREAD_REPLIES_BYTES_MAX: usize = MIB;
/// All that one node holds for its clients: partial requests, queued commands, names they watch and listen to, replies and messages
/// not sent. Beyond it clients above their fair share are disconnected (`client_memory.rs` of the proxy).
pub const CLIENT_BYTES_PER_NODE_MAX: usize = 256 * MIB;

/// One piece of a snapshot as the machine gives it, and as it is read back.
pub const SNAPSHOT_PIECE_BYTES_MAX: usize = MIB;
/// One record of a snapshot, which may span pieces: the largest is a blocked client with the words of its command, once as sent and
/// once as keys. Large collections are many records.
pub const SNAPSHOT_RECORD_BYTES_MAX: usize = 2 * ENTRY_BYTES_MAX;
/// Elements of a collection share a record up to this size; a larger element has one of its own.
pub const SNAPSHOT_ELEMENTS_BYTES: usize = 64 * KIB;

const _: () = {
    assert!(KEY_BYTES_MAX <= WORD_BYTES_MAX && WORD_BYTES_MAX <= STRING_BYTES_MAX);
    assert!(SCRIPT_BYTES_MAX < REQUEST_BYTES_MAX, "a script fits into a request");
    assert!(STRING_BYTES_MAX + ELEMENT_OVERHEAD_BYTES < COLLECTION_BYTES_MAX);
    assert!(LOGGED_REPLY_BYTES_MAX < REQUEST_BYTES_MAX, "the effects of a script carry its reply");
    assert!(STRING_BYTES_MAX < LOGGED_REPLY_BYTES_MAX, "any one value can be shown");
    assert!(REQUEST_BYTES_MAX < ENTRY_BYTES_MAX);
    assert!(
        ENTRY_BYTES_MAX + PEER_FRAME_OVERHEAD_BYTES < PEER_FRAME_BYTES_MAX,
        "a frame holds the largest entry"
    );
    assert!(APPEND_BYTES_MAX + PEER_FRAME_OVERHEAD_BYTES < PEER_FRAME_BYTES_MAX);
    assert!(SNAPSHOT_PIECE_BYTES_MAX + PEER_FRAME_OVERHEAD_BYTES < PEER_FRAME_BYTES_MAX);
    assert!(STRING_BYTES_MAX + KEY_BYTES_MAX < SNAPSHOT_RECORD_BYTES_MAX);
    assert!(SCRIPT_BYTES_MAX < SNAPSHOT_RECORD_BYTES_MAX);
    assert!(
        8 * (2 * (READ_REPLY_BYTES_MAX + UNREAD_REPLIES_BYTES_MAX) + REQUEST_BYTES_MAX)
            < CLIENT_BYTES_PER_NODE_MAX,
        "several clients may have their largest replies and requests at once"
    );
};
