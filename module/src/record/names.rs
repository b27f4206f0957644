//! The names of side keys, in the cluster slot of the key they belong to.
//!
//! A resource without `}` becomes the hash tag of its side key (`__fence__{K}`); one with it keeps the tag it has (`__fence__:K`). The
//! byte behind the prefix tells the two apart, so no two resources share a side key.

use crate::ffi::{Ctx, OwnedString};
use redfence_core::grammar::errors::shown;
use redfence_core::reply::Refusal;
use redfence_core::types::RESOURCE_BYTES_MAX;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The companion of a lock.
pub(crate) const COMPANION: &[u8] = b"__fence__";
/// The high-water mark of a resource.
pub(crate) const MARK: &[u8] = b"__hwm__";
/// All companions, for `SCAN`.
pub(crate) const COMPANIONS_PATTERN: &[u8] = b"__fence__[{:]*";

thread_local! {
    /// A name is put together here and copied into a string of Redis: no allocation of our own.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Slots matter in cluster mode alone; a server does not change its mode.
static IN_CLUSTER: AtomicBool = AtomicBool::new(false);

pub(crate) fn learn_mode(ctx: &Ctx) {
    IN_CLUSTER.store(ctx.is_cluster(), Ordering::Relaxed);
}

/// Refused in cluster mode for a name whose slot no side key can share: it has a `}` but no hash tag.
pub(crate) fn side_key(prefix: &[u8], resource: &[u8]) -> Result<OwnedString, Refusal> {
    if IN_CLUSTER.load(Ordering::Relaxed) && resource.contains(&b'}') && !has_tag(resource) {
        return Err(Refusal::new(format!(
            "CROSSSLOT resource '{}' has a '}}' but no hash tag, so its fence cannot be kept in its slot; rename it",
            shown(resource)
        )));
    }
    SCRATCH.with(|scratch| {
        let mut bytes = scratch.borrow_mut();
        bytes.clear();
        write_side_key(prefix, resource, &mut bytes);
        Ok(OwnedString::new(&bytes))
    })
}

fn write_side_key(prefix: &[u8], resource: &[u8], into: &mut Vec<u8>) {
    let (before, behind): (&[u8], &[u8]) = if resource.contains(&b'}') { (b":", b"") } else { (b"{", b"}") };
    for part in [prefix, before, resource, behind] {
        into.extend_from_slice(part);
    }
}

/// Whether Redis hashes only a part of the name: the first `{` has a later `}` with something between.
fn has_tag(resource: &[u8]) -> bool {
    let Some(open) = resource.iter().position(|byte| *byte == b'{') else {
        return false;
    };
    resource[open + 1..].iter().position(|byte| *byte == b'}').is_some_and(|len| len > 0)
}

/// The resource a companion belongs to. `None` for a key that only looks like one.
pub(crate) fn resource_of(companion: &[u8]) -> Option<&[u8]> {
    let rest = companion.strip_prefix(COMPANION)?;
    let resource = match rest.split_first()? {
        (b'{', rest) => rest.strip_suffix(b"}").filter(|resource| !resource.contains(&b'}'))?,
        (b':', rest) if rest.contains(&b'}') => rest,
        _ => return None,
    };
    (1..=RESOURCE_BYTES_MAX).contains(&resource.len()).then_some(resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(resource: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_side_key(COMPANION, resource, &mut bytes);
        bytes
    }

    #[test]
    fn follow_the_layout() {
        assert_eq!(side(b"wallet:7"), b"__fence__{wallet:7}");
        assert_eq!(side(b"{user}:7"), b"__fence__:{user}:7");
        assert_eq!(side(b"a{b"), b"__fence__{a{b}");
        assert_eq!(side(b"a}b"), b"__fence__:a}b");
        assert_eq!(side(&[b'x'; RESOURCE_BYTES_MAX]).len(), COMPANION.len() + RESOURCE_BYTES_MAX + 2);
    }

    #[test]
    fn lead_back_to_the_resource() {
        for resource in [&b"a"[..], b"{user}:7", b"a{b", b"a}b", b"}", b"{}", b"\0\xff ", b"__fence__{a}"] {
            assert_eq!(resource_of(&side(resource)), Some(resource));
        }
        for stranger in
            [&b"__fence__"[..], b"__fence__a", b"__fence__{", b"__fence__{}", b"__fence__:a", b"other{a}"]
        {
            assert_eq!(resource_of(stranger), None, "{}", String::from_utf8_lossy(stranger));
        }
    }

    #[test]
    fn tags_are_redis_tags() {
        for (name, tagged) in [
            ("{a}", true),
            ("x{a}y", true),
            ("{}", false),
            ("{}{a}", false),
            ("a}b", false),
            ("}{", false),
            ("{a", false),
        ] {
            assert_eq!(has_tag(name.as_bytes()), tagged, "{name}");
        }
    }
}
