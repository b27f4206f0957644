//! `SCRIPT LOAD`, `EXISTS` and `FLUSH` where keys live in two stores: both act, and their answers become one.

use crate::tier1::upstream::Upstream;
use crate::tier2::handle::PendingReply;
use bytes::Bytes;
use redfence_core::reply::Reply;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Asks the upstream Redis as well, and joins the answers.
pub(super) fn start(
    upstream: Arc<Upstream>,
    argv: Vec<Bytes>,
    keyspace: PendingReply,
) -> oneshot::Receiver<Reply> {
    let (sender, receiver) = oneshot::channel();
    tokio::spawn(async move {
        let ours = keyspace.await;
        let theirs = upstream.ask(&argv).await;
        // The client may be gone: then nobody misses the answer.
        let _ = sender.send(joined(ours, theirs));
    });
    receiver
}

/// An error of either; `EXISTS` is true where both know the script; else the answer, which is the same from both.
fn joined(ours: Reply, theirs: Reply) -> Reply {
    match (ours, theirs) {
        (_, theirs @ Reply::Error(_)) => theirs,
        (ours @ Reply::Error(_), _) => ours,
        (Reply::Array(ours), Reply::Array(theirs)) => {
            let both = ours.into_iter().zip(theirs).map(|(ours, theirs)| {
                Reply::Int(i64::from(ours == Reply::Int(1) && theirs == Reply::Int(1)))
            });
            Reply::Array(both.collect())
        }
        (_, theirs) => theirs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redfence_core::reply::Refusal;

    #[test]
    fn a_script_exists_where_both_know_it() {
        let known = |flags: &[i64]| Reply::Array(flags.iter().map(|flag| Reply::Int(*flag)).collect());
        assert_eq!(joined(known(&[1, 1, 0]), known(&[1, 0, 1])), known(&[1, 0, 0]));
        let error = Reply::Error(Refusal::new("UNAVAILABLE no leader"));
        assert_eq!(joined(error.clone(), Reply::OK), error);
    }
}
