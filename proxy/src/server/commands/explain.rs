//! What `LOCK.EXPLAIN` shows to a client that may not see every name.

use crate::acl::User;
use redfence_core::reply::Reply;

/// The chains of `blocked_by` lead to locks that the client did not name. Each ends before the first that it may not read.
pub(in crate::server) fn explained_to(user: &User, reply: Reply) -> Reply {
    let Reply::Map(mut pairs) = reply else { return reply };
    let chains = pairs.iter_mut().filter(|(key, _)| *key == Reply::Text("blocked_by"));
    for (_, chains) in chains {
        let Reply::Array(chains) = chains else { continue };
        for chain in chains.iter_mut() {
            let Reply::Array(links) = chain else { continue };
            let seen = links.iter().take_while(|link| may_see(user, link)).count();
            links.truncate(seen);
        }
        chains.retain(|chain| *chain != Reply::Array(Vec::new()));
    }
    Reply::Map(pairs)
}

fn may_see(user: &User, link: &Reply) -> bool {
    let Reply::Map(pairs) = link else { return false };
    pairs.iter().any(|(key, name)| {
        *key == Reply::Text("waits_for") && matches!(name, Reply::Bulk(name) if user.may_read_key(name))
    })
}
