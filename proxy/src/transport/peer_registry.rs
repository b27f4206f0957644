//! What this node knows of itself and of its peers: the greeting is checked against it.
//!
//! The identity and the peers' store ids are durable before they are used. The members come from the node itself.

use super::greeting::{GreetingRefusal, Hello};
use super::security::PeerSecurity;
use crate::node_api::{ClusterMember, NodeId};
use crate::storage::datadir::{is_begin_of, is_whole, DataDir, KnownStores, NodeIdentity, StoreId};
use crate::storage::StorageError;
use redfence_core::machine::version::{self, ClusterVersion, VersionRange};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct PeerRegistry {
    dir: Arc<DataDir>,
    /// Where peers reach this node.
    pub(super) advertise: String,
    pub(super) security: PeerSecurity,
    /// What this node can run.
    pub(super) versions: VersionRange,
    /// Nodes of its configuration: a joining node takes the cluster's id from these alone. Empty: from
    /// whoever dials it.
    told_of: Vec<NodeId>,
    /// As in the identity, for the node to look at.
    cluster_id: Arc<AtomicU64>,
    state: Mutex<RegistryState>,
}

struct RegistryState {
    identity: NodeIdentity,
    known: KnownStores,
    /// Member id to the log index that brought it in.
    members: BTreeMap<NodeId, u64>,
    /// What the cluster runs, as far as this node has applied the log.
    cluster_version: ClusterVersion,
}

impl PeerRegistry {
    pub fn open(
        dir: Arc<DataDir>,
        identity: NodeIdentity,
        advertise: String,
        security: PeerSecurity,
        told_of: Vec<NodeId>,
    ) -> Result<PeerRegistry, StorageError> {
        let known = dir.known_stores()?;
        let state =
            RegistryState { identity, known, members: BTreeMap::new(), cluster_version: version::FIRST };
        let versions = VersionRange::PROGRAM;
        let cluster_id = Arc::new(AtomicU64::new(identity.cluster_id));
        Ok(PeerRegistry { dir, advertise, security, versions, told_of, cluster_id, state: Mutex::new(state) })
    }

    /// What this node can run: the program's own range, unless this says otherwise.
    #[must_use]
    pub fn with_versions(mut self, versions: VersionRange) -> PeerRegistry {
        self.versions = versions;
        self
    }

    pub fn set_cluster_version(&self, runs: ClusterVersion) {
        self.state().cluster_version = runs;
    }

    pub(super) fn cluster_version(&self) -> ClusterVersion {
        self.state().cluster_version
    }

    /// The cluster's id, 0 until it is known; kept up to date.
    pub fn cluster_id(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.cluster_id)
    }

    pub fn identity(&self) -> NodeIdentity {
        self.state().identity
    }

    /// Returns the members that are new, or live a new life. Whatever they showed before was not looked at as closely as a
    /// member's greeting is: they must greet again.
    pub fn set_members(&self, members: &[ClusterMember]) -> Vec<NodeId> {
        let mut state = self.state();
        let before = std::mem::take(&mut state.members);
        state.members = members.iter().map(|member| (member.id, member.added_at)).collect();
        let fresh = |(id, added_at): (&NodeId, &u64)| (before.get(id) != Some(added_at)).then_some(*id);
        state.members.iter().filter_map(fresh).collect()
    }

    /// Checks a greeting, and writes down what is new in it: the cluster's id at a node that joins, the store of a member
    /// met for the first time.
    pub(super) fn admit(&self, hello: &Hello) -> Result<(), GreetingRefusal> {
        let mut state = self.state();
        if hello.node_id == state.identity.node_id {
            return Err(GreetingRefusal::SameId(hello.node_id));
        }
        if hello.to_node != state.identity.node_id {
            return Err(GreetingRefusal::WrongNode { wanted: hello.to_node, found: state.identity.node_id });
        }
        self.check_cluster(&mut state, hello)?;
        self.check_versions(&state, hello)?;
        self.check_store(&mut state, hello)
    }

    fn check_cluster(&self, state: &mut RegistryState, hello: &Hello) -> Result<(), GreetingRefusal> {
        let own = &state.identity;
        if is_whole(own.cluster_id) && own.cluster_id == hello.cluster_id {
            return Ok(());
        }
        if !is_whole(hello.cluster_id) {
            // It waits to be added. Members are dialled by the leader, and learn the id there.
            let is_awaited = is_begin_of(hello.cluster_id, own.cluster_id);
            return match is_awaited && state.members.contains_key(&hello.node_id) {
                true => Ok(()),
                false => Err(GreetingRefusal::NotAdded(hello.node_id)),
            };
        }
        let is_told_of = self.told_of.is_empty() || self.told_of.contains(&hello.node_id);
        if !is_begin_of(own.cluster_id, hello.cluster_id) || !is_told_of {
            return Err(GreetingRefusal::OtherCluster { theirs: hello.cluster_id, ours: own.cluster_id });
        }
        let identity = NodeIdentity { cluster_id: hello.cluster_id, ..state.identity };
        self.dir.save_identity(&identity).map_err(|e| GreetingRefusal::Storage(e.to_string()))?;
        tracing::info!(cluster = %format_args!("{:016x}", hello.cluster_id), by = hello.node_id, "joined a cluster");
        self.cluster_id.store(identity.cluster_id, Ordering::Relaxed);
        state.identity = identity;
        Ok(())
    }

    /// Both must be able to run what the cluster runs. A node that is behind does not know of the last raise yet, so the
    /// higher one of the two counts.
    fn check_versions(&self, state: &RegistryState, hello: &Hello) -> Result<(), GreetingRefusal> {
        let runs = state.cluster_version.max(hello.cluster_version);
        let cannot = |id, can_run: VersionRange| {
            (!can_run.contains(runs)).then_some(GreetingRefusal::Version { id, runs, can_run })
        };
        let refusal =
            cannot(hello.node_id, hello.versions).or_else(|| cannot(state.identity.node_id, self.versions));
        refusal.map_or(Ok(()), Err)
    }

    fn check_store(&self, state: &mut RegistryState, hello: &Hello) -> Result<(), GreetingRefusal> {
        // Who is no member has nothing to be remembered by; the node tells it so.
        let Some(added_at) = state.members.get(&hello.node_id).copied() else { return Ok(()) };
        let member = (hello.node_id, added_at);
        match state.known.get(&member) {
            Some(known) if *known == hello.store_id => Ok(()),
            Some(known) => {
                Err(GreetingRefusal::OtherStore { id: hello.node_id, known: *known, shown: hello.store_id })
            }
            None => self.remember(state, member, hello.store_id),
        }
    }

    fn remember(
        &self,
        state: &mut RegistryState,
        member: (NodeId, u64),
        store: StoreId,
    ) -> Result<(), GreetingRefusal> {
        let mut known = state.known.clone();
        // An earlier life of the same id is over.
        known.retain(|(id, _), _| *id != member.0);
        known.insert(member, store);
        self.dir.save_known_stores(&known).map_err(|e| GreetingRefusal::Storage(e.to_string()))?;
        state.known = known;
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
