//! etcd over gRPC: locks by transaction (its fastest way), by its lock API, and the read lock of the recipes in its Go client.
//!
//! All requests go to the leader, over several connections, each client with a lease of its own that outlives the run: granting one for
//! each lock would cost etcd a second write.

mod proto;

use crate::load_generator::Tally;
use proto::{
    Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseGrantRequest, LeaseGrantResponse, LockRequest,
    LockResponse, PutRequest, RangeRequest, RangeResponse, RequestOp, StatusRequest, StatusResponse,
    TxnRequest, TxnResponse, UnlockRequest, UnlockResponse, SORT_BY_MOD_REVISION, SORT_DESCENDING,
    TARGET_CREATE,
};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

const CONNECTIONS_MAX: usize = 16;
const LEASE_S: i64 = 3_600;

/// How clients lock in etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EtcdMethod {
    Transaction,
    LockApi,
    /// All clients wait for one name by the lock API.
    HotLockApi,
    /// All clients read one name, as `RWMutex.RLock` of the recipes does: a key of its own, then a look for writers before it.
    ReadLock,
}

#[derive(Clone)]
pub(crate) struct EtcdClient {
    channel: Channel,
    method: EtcdMethod,
    name: Vec<u8>,
    owner: Vec<u8>,
    lease: i64,
    attempt: u64,
}

type LastRelease = Arc<Mutex<Option<Instant>>>;

pub(crate) struct EtcdLoad {
    runtime: tokio::runtime::Runtime,
    clients: Vec<EtcdClient>,
    last_release: LastRelease,
}

impl EtcdLoad {
    pub(crate) fn connect(
        address: SocketAddr,
        method: EtcdMethod,
        clients: usize,
    ) -> Result<EtcdLoad, String> {
        let runtime = runtime()?;
        let clients = runtime.block_on(async {
            let mut channels = Vec::new();
            for _ in 0..clients.min(CONNECTIONS_MAX) {
                channels.push(channel(address).await?);
            }
            let mut made = Vec::new();
            for number in 0..clients {
                let channel = channels[number % channels.len()].clone();
                made.push(EtcdClient::new(channel, method, number).await?);
            }
            Ok::<_, String>(made)
        })?;
        Ok(EtcdLoad { runtime, clients, last_release: LastRelease::default() })
    }

    pub(crate) fn turn(&mut self, length: Duration) -> Result<Tally, String> {
        let began = Instant::now();
        let (clients, last_release) = (&self.clients, &self.last_release);
        let mut tally = self.runtime.block_on(async {
            let mut running = tokio::task::JoinSet::new();
            for client in clients {
                let (client, last_release) = (client.clone(), Arc::clone(last_release));
                running.spawn(async move { client.go_on_until(began + length, &last_release).await });
            }
            let mut tally = Tally::default();
            while let Some(ended) = running.join_next().await {
                tally.absorb(&ended.map_err(|error| format!("an etcd client ended: {error}"))??);
            }
            Ok::<_, String>(tally)
        })?;
        tally.wall = began.elapsed();
        Ok(tally)
    }
}

impl EtcdClient {
    pub(crate) async fn new(
        channel: Channel,
        method: EtcdMethod,
        number: usize,
    ) -> Result<EtcdClient, String> {
        let grant = LeaseGrantRequest { ttl_s: LEASE_S };
        let granted: LeaseGrantResponse = call(&channel, "/etcdserverpb.Lease/LeaseGrant", grant).await?;
        let name = match method {
            EtcdMethod::Transaction | EtcdMethod::LockApi => crate::work::name(number as u64),
            EtcdMethod::HotLockApi => crate::work::name(0),
            EtcdMethod::ReadLock => crate::work::name(crate::work::READ_NAME),
        };
        let mut owner = Vec::new();
        crate::work::write_owner(number, 0, &mut owner);
        Ok(EtcdClient { channel, method, name, owner, lease: granted.id, attempt: 0 })
    }

    async fn go_on_until(self, end: Instant, last_release: &LastRelease) -> Result<Tally, String> {
        let mut tally = Tally::default();
        while Instant::now() < end {
            match self.method {
                EtcdMethod::Transaction => self.pair_by_transaction(&mut tally, || {}).await?,
                EtcdMethod::LockApi | EtcdMethod::HotLockApi => {
                    self.pair_by_lock_api(&mut tally, last_release).await?
                }
                EtcdMethod::ReadLock => self.pair_by_read_lock(&mut tally).await?,
            }
        }
        Ok(tally)
    }

    /// A name nobody has had yet.
    pub(crate) fn rename(&mut self) {
        self.attempt += 1;
        self.name = format!("failover:{}:{}", self.lease, self.attempt).into_bytes();
    }

    /// Creates the key if it is not there; deletes it if it is still ours.
    pub(crate) async fn pair_by_transaction(
        &self,
        tally: &mut Tally,
        granted_now: impl FnOnce(),
    ) -> Result<(), String> {
        let began = Instant::now();
        let compare = |revision| Compare {
            target: TARGET_CREATE,
            key: self.name.clone(),
            create_revision: Some(revision),
        };
        let put = PutRequest { key: self.name.clone(), value: self.owner.clone(), lease: self.lease };
        let acquire = TxnRequest {
            compare: vec![compare(0)],
            success: vec![RequestOp { put: Some(put), delete: None }],
        };
        let granted: TxnResponse = call(&self.channel, "/etcdserverpb.KV/Txn", acquire).await?;
        if !granted.succeeded {
            return Err("etcd: not granted".into());
        }
        tally.latencies.record(began.elapsed());
        granted_now();
        let began = Instant::now();
        let revision = granted.header.unwrap_or_default().revision;
        let delete = DeleteRangeRequest { key: self.name.clone() };
        let release = TxnRequest {
            compare: vec![compare(revision)],
            success: vec![RequestOp { put: None, delete: Some(delete) }],
        };
        let released: TxnResponse = call(&self.channel, "/etcdserverpb.KV/Txn", release).await?;
        if !released.succeeded {
            return Err("etcd: not released".into());
        }
        tally.second.record(began.elapsed());
        tally.done += 1;
        Ok(())
    }

    async fn pair_by_read_lock(&self, tally: &mut Tally) -> Result<(), String> {
        let began = Instant::now();
        let key = [&self.name, b"/read/".as_slice(), &self.owner].concat();
        let unused = Compare { target: TARGET_CREATE, key: key.clone(), create_revision: Some(0) };
        let put = PutRequest { key: key.clone(), value: Vec::new(), lease: self.lease };
        let queue =
            TxnRequest { compare: vec![unused], success: vec![RequestOp { put: Some(put), delete: None }] };
        let queued: TxnResponse = call(&self.channel, "/etcdserverpb.KV/Txn", queue).await?;
        if !queued.succeeded {
            return Err("etcd: the reader's key is there already".into());
        }
        let writers = RangeRequest {
            key: [&self.name, b"/write/".as_slice()].concat(),
            // Beyond all that begins so.
            range_end: [&self.name, b"/write0".as_slice()].concat(),
            limit: 1,
            sort_order: SORT_DESCENDING,
            sort_target: SORT_BY_MOD_REVISION,
            max_mod_revision: queued.header.unwrap_or_default().revision - 1,
        };
        let before: RangeResponse = call(&self.channel, "/etcdserverpb.KV/Range", writers).await?;
        if before.count > 0 {
            return Err("etcd: a writer among readers".into());
        }
        tally.latencies.record(began.elapsed());
        let began = Instant::now();
        let deleted: DeleteRangeResponse =
            call(&self.channel, "/etcdserverpb.KV/DeleteRange", DeleteRangeRequest { key }).await?;
        if deleted.deleted != 1 {
            return Err("etcd: not released".into());
        }
        tally.second.record(began.elapsed());
        tally.done += 1;
        Ok(())
    }

    async fn pair_by_lock_api(&self, tally: &mut Tally, last_release: &LastRelease) -> Result<(), String> {
        let began = Instant::now();
        let lock = LockRequest { name: self.name.clone(), lease: self.lease };
        let locked: LockResponse = call(&self.channel, "/v3lockpb.Lock/Lock", lock).await?;
        let now = Instant::now();
        tally.latencies.record(now - began);
        let hot = self.method == EtcdMethod::HotLockApi;
        if hot {
            if let Some(last_release) = last_release.lock().map_err(|_| "poisoned")?.take() {
                tally.second.record(now - last_release);
            }
            *last_release.lock().map_err(|_| "poisoned")? = Some(Instant::now());
        }
        let unlock = UnlockRequest { key: locked.key };
        let _: UnlockResponse = call(&self.channel, "/v3lockpb.Lock/Unlock", unlock).await?;
        if !hot {
            tally.second.record(now.elapsed());
        }
        tally.done += 1;
        Ok(())
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| format!("no runtime: {error}"))
}

pub(crate) async fn channel(address: SocketAddr) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    endpoint.tcp_nodelay(true).connect().await.map_err(|error| format!("cannot connect to etcd: {error}"))
}

async fn call<Q, A>(channel: &Channel, path: &'static str, request: Q) -> Result<A, String>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| format!("etcd: {error}"))?;
    let codec = tonic_prost::ProstCodec::<Q, A>::default();
    let answered = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
    answered.map(tonic::Response::into_inner).map_err(|status| format!("etcd: {path}: {}", status.message()))
}

/// A node's own id and its leader's; none where it does not answer.
pub(crate) fn member_and_leader(address: SocketAddr) -> Option<(u64, u64)> {
    runtime().ok()?.block_on(async {
        let asked = async {
            let channel = channel(address).await.ok()?;
            let status: StatusResponse =
                call(&channel, "/etcdserverpb.Maintenance/Status", StatusRequest {}).await.ok()?;
            Some((status.header?.member_id, status.leader))
        };
        tokio::time::timeout(Duration::from_secs(2), asked).await.ok()?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;

    #[test]
    fn messages_have_etcds_field_numbers() {
        let compare = Compare { target: TARGET_CREATE, key: b"k".to_vec(), create_revision: Some(0) };
        // target = 1 (field 2), key (field 3), create_revision = 0 (field 5), which must be there.
        assert_eq!(compare.encode_to_vec(), [0x10, 1, 0x1a, 1, b'k', 0x28, 0]);
        let put =
            RequestOp { put: Some(PutRequest { key: b"k".to_vec(), value: vec![], lease: 9 }), delete: None };
        assert_eq!(put.encode_to_vec(), [0x12, 5, 0x0a, 1, b'k', 0x18, 9]);
    }
}
