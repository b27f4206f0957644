//! ZooKeeper's protocol, as much of it as the lock recipe needs: frames with a length in front, numbers big-endian, strings with a length.
//!
//! Written by hand so that ZooKeeper is driven by the same cheap loop as the others. Checked against a ZooKeeper 3.8 server.

pub(crate) const OK: i32 = 0;
pub(crate) const NO_NODE: i32 = -101;
pub(crate) const NODE_EXISTS: i32 = -110;
const XID_OF_EVENTS: i32 = -1;
const SESSION_TIMEOUT_MS: i32 = 40_000;

#[derive(Clone, Copy, Debug)]
pub(crate) enum CreateMode {
    Persistent = 0,
    EphemeralSequential = 3,
}

/// The length of the first frame, if it is whole.
pub(crate) fn frame_len(bytes: &[u8]) -> Option<usize> {
    let len = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?) as usize + 4;
    (bytes.len() >= len).then_some(len)
}

fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_be_bytes());
}

fn int(out: &mut Vec<u8>, value: i32) {
    out.extend_from_slice(&value.to_be_bytes());
}

fn buffer(out: &mut Vec<u8>, bytes: &[u8]) {
    int(out, bytes.len() as i32);
    out.extend_from_slice(bytes);
}

pub(crate) fn connect(out: &mut Vec<u8>) {
    frame(out, |out| {
        int(out, 0);
        out.extend_from_slice(&0i64.to_be_bytes());
        int(out, SESSION_TIMEOUT_MS);
        out.extend_from_slice(&0i64.to_be_bytes());
        buffer(out, &[0; 16]);
        out.push(0);
    });
}

/// The session's id in the answer to [`connect`]; 0 where it was refused.
pub(crate) fn session_of(frame: &[u8]) -> i64 {
    frame.get(12..20).and_then(|bytes| bytes.try_into().ok()).map_or(0, i64::from_be_bytes)
}

pub(crate) fn create(xid: i32, path: &[u8], mode: CreateMode, out: &mut Vec<u8>) {
    const ALL_PERMISSIONS: i32 = 31;
    frame(out, |out| {
        int(out, xid);
        int(out, 1);
        buffer(out, path);
        buffer(out, b"");
        int(out, 1);
        int(out, ALL_PERMISSIONS);
        buffer(out, b"world");
        buffer(out, b"anyone");
        int(out, mode as i32);
    });
}

pub(crate) fn delete(xid: i32, path: &[u8], out: &mut Vec<u8>) {
    const ANY_VERSION: i32 = -1;
    frame(out, |out| {
        int(out, xid);
        int(out, 2);
        buffer(out, path);
        int(out, ANY_VERSION);
    });
}

pub(crate) fn get_data_and_watch(xid: i32, path: &[u8], out: &mut Vec<u8>) {
    frame(out, |out| {
        int(out, xid);
        int(out, 4);
        buffer(out, path);
        out.push(1);
    });
}

pub(crate) fn get_children(xid: i32, path: &[u8], out: &mut Vec<u8>) {
    frame(out, |out| {
        int(out, xid);
        int(out, 8);
        buffer(out, path);
        out.push(0);
    });
}

/// A frame after the greeting.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ServerReply<'a> {
    /// A watch has fired.
    Event,
    Reply {
        xid: i32,
        error: i32,
        body: &'a [u8],
    },
}

pub(crate) fn read(frame: &[u8]) -> Option<ServerReply<'_>> {
    let int_at =
        |at: usize| frame.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    let (xid, error) = (int_at(4)?, int_at(16)?);
    Some(match xid {
        XID_OF_EVENTS => ServerReply::Event,
        xid => ServerReply::Reply { xid, error, body: frame.get(20..)? },
    })
}

/// A string, and what follows it.
pub(crate) fn string(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let len = i32::from_be_bytes(body.get(..4)?.try_into().ok()?);
    let rest = &body[4..];
    let len = usize::try_from(len).ok().filter(|len| *len <= rest.len())?;
    Some(rest.split_at(len))
}

/// A list of strings.
pub(crate) fn strings(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = body.get(4..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (one, behind) = string(rest)?;
        rest = behind;
        Some(one)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_or_not() {
        let mut out = Vec::new();
        delete(7, b"/a", &mut out);
        assert_eq!(frame_len(&out), Some(out.len()));
        assert_eq!(frame_len(&out[..out.len() - 1]), None);
        assert_eq!(frame_len(&out[..3]), None);
        assert_eq!(&out[..8], &[0, 0, 0, 18, 0, 0, 0, 7]);
    }

    #[test]
    fn replies_and_events_are_told_apart() {
        let mut reply = Vec::new();
        frame(&mut reply, |out| {
            int(out, 9);
            out.extend_from_slice(&5i64.to_be_bytes());
            int(out, NO_NODE);
        });
        assert_eq!(read(&reply), Some(ServerReply::Reply { xid: 9, error: NO_NODE, body: b"" }));
        reply[4..8].copy_from_slice(&XID_OF_EVENTS.to_be_bytes());
        assert_eq!(read(&reply), Some(ServerReply::Event));
        assert_eq!(read(&reply[..10]), None);
    }

    #[test]
    fn lists_of_strings_are_read() {
        let mut body = Vec::new();
        int(&mut body, 2);
        buffer(&mut body, b"lock-1");
        buffer(&mut body, b"lock-2");
        assert_eq!(strings(&body).collect::<Vec<_>>(), [b"lock-1", b"lock-2"]);
        assert_eq!(strings(b"").count(), 0);
    }
}
