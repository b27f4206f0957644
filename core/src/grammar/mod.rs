//! argv → [`Request`]: one file a command, and nothing outside it knows the command's words.
//!
//! A request borrows from the argv it was read from, so reading one allocates nothing. Limits and error texts are those of
//! the contract; a malformed command is a [`Refusal`], and nothing has happened.

pub mod acquire;
pub mod cluster;
pub mod convert;
pub mod errors;
pub mod explain;
pub mod fence;
pub mod forcerelease;
pub mod info;
pub mod macquire;
pub mod mrelease;
pub mod notify;
pub mod queue;
pub mod release;
pub mod renew;
pub mod scan;
pub mod session;
pub mod table;
pub mod words;

use crate::reply::Refusal;
use crate::types::Tier;

/// A command of Redfence, well formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    Acquire(acquire::Acquire<'a>),
    Release(release::Release<'a>),
    Renew(renew::Renew<'a>),
    Convert(convert::Convert<'a>),
    Info(info::Info<'a>),
    Explain(explain::Explain<'a>),
    MAcquire(macquire::MAcquire<'a>),
    MRelease(mrelease::MRelease<'a>),
    Queue(queue::Queue<'a>),
    Scan(scan::Scan<'a>),
    Session(session::SessionCommand<'a>),
    Notify(notify::Notify<'a>),
    ForceRelease(forcerelease::ForceRelease<'a>),
    Cluster(cluster::Cluster<'a>),
    FenceCheck(fence::FenceCheck<'a>),
    FenceGet(fence::FenceGet<'a>),
    FenceCall(fence::FenceCall<'a>),
}

/// Whether a command's name is one of ours, well formed or not.
#[must_use]
pub fn is_ours(name: &[u8]) -> bool {
    table::find(name).is_some()
}

/// Reads one command. `None` where the name is not ours.
#[must_use]
pub fn parse<A: AsRef<[u8]>>(argv: &[A]) -> Option<Result<Request<'_>, Refusal>> {
    let verb = table::find(argv.first()?.as_ref())?.verb;
    Some(match verb {
        table::Verb::Acquire => acquire::parse(argv).map(Request::Acquire),
        table::Verb::Release => release::parse(argv).map(Request::Release),
        table::Verb::Renew => renew::parse(argv).map(Request::Renew),
        table::Verb::Convert => convert::parse(argv).map(Request::Convert),
        table::Verb::Explain => explain::parse(argv).map(Request::Explain),
        table::Verb::Notify => notify::parse(argv).map(Request::Notify),
        table::Verb::Info => info::parse(argv).map(Request::Info),
        table::Verb::MAcquire => macquire::parse(argv).map(Request::MAcquire),
        table::Verb::MRelease => mrelease::parse(argv).map(Request::MRelease),
        table::Verb::Queue => queue::parse(argv).map(Request::Queue),
        table::Verb::Scan => scan::parse(argv).map(Request::Scan),
        table::Verb::Session => session::parse(argv).map(Request::Session),
        table::Verb::ForceRelease => forcerelease::parse(argv).map(Request::ForceRelease),
        table::Verb::Cluster => cluster::parse(argv).map(Request::Cluster),
        table::Verb::FenceCheck => fence::parse_check(argv).map(Request::FenceCheck),
        table::Verb::FenceGet => fence::parse_get(argv).map(Request::FenceGet),
        table::Verb::FenceCall => fence::parse_call(argv).map(Request::FenceCall),
    })
}

impl<'a> Request<'a> {
    /// The options of a command that takes locks.
    #[must_use]
    pub fn acquire_options(&self) -> Option<&words::Options<'a>> {
        match self {
            Request::Acquire(request) => Some(&request.options),
            Request::MAcquire(request) => Some(&request.options),
            Request::Release(_)
            | Request::Renew(_)
            | Request::Convert(_)
            | Request::Info(_)
            | Request::Explain(_)
            | Request::MRelease(_)
            | Request::Queue(_)
            | Request::Scan(_)
            | Request::Session(_)
            | Request::Notify(_)
            | Request::ForceRelease(_)
            | Request::Cluster(_)
            | Request::FenceCheck(_)
            | Request::FenceGet(_)
            | Request::FenceCall(_) => None,
        }
    }

    /// How long the command may wait for what it asks, in milliseconds.
    #[must_use]
    pub fn wait_ms(&self) -> u64 {
        if let Request::Convert(request) = self {
            return request.wait_ms.unwrap_or(0);
        }
        self.acquire_options().and_then(|options| options.wait_ms).unwrap_or(0)
    }

    /// The tier the command itself names, if it does. A session, named or used, means Tier 2.
    #[must_use]
    pub fn tier(&self) -> Option<Tier> {
        match self {
            Request::Acquire(request) => request.options.tier,
            Request::MAcquire(request) => request.options.tier,
            Request::Release(request) => request.tier,
            Request::Renew(request) => request.tier,
            Request::Info(request) => request.tier,
            Request::MRelease(request) => request.tier,
            Request::Queue(request) => request.tier,
            Request::Scan(request) => request.tier,
            Request::ForceRelease(request) => request.tier,
            Request::Explain(request) => request.tier,
            Request::Session(_) | Request::Convert(_) | Request::Notify(_) => Some(Tier::Correctness),
            Request::FenceCheck(_) | Request::FenceGet(_) | Request::FenceCall(_) => Some(Tier::Efficiency),
            Request::Cluster(_) => None,
        }
    }
}
