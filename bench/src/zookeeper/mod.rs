//! ZooKeeper by the recipes of Curator. `InterProcessMutex`: an ephemeral sequential node a contender, the lowest holds the lock, and
//! everybody else watches the one before it. The read lock of `InterProcessReadWriteLock`: a reader watches the last writer before it, if
//! there is one.
//!
//! One session a client, as an application has. The parents of the locks are made once: that is not what is measured.

pub(crate) mod wire;

use crate::load_generator::{Client, NextStep, Tally};
use crate::work::hot::LastRelease;
use crate::work::{HOT_NAME, READ_NAME};
use std::collections::VecDeque;
use std::time::Instant;
use wire::{CreateMode, ServerReply, NODE_EXISTS, NO_NODE, OK};

const ROOT: &[u8] = b"/locks";

/// What a client of ZooKeeper does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZooKeeperWork {
    /// Each client a name of its own.
    Private,
    /// All wait for one name.
    Hot,
    /// All read one name.
    Readers,
}

/// Curator's names of the nodes, before ZooKeeper's number.
const MUTEX: &[u8] = b"_c_-lock-";
const READER: &[u8] = b"_c_-__READ__";
const WRITER: &[u8] = b"__WRIT__";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecipeState {
    Connect,
    MakeParents,
    Create,
    Children,
    Watch,
    Watching,
    Delete,
}

pub(crate) struct Recipe {
    work: ZooKeeperWork,
    state: RecipeState,
    xid: i32,
    /// Parents still to be made.
    unmade: VecDeque<Vec<u8>>,
    /// The lock's own directory.
    parent: Vec<u8>,
    /// Our node in it.
    node: Vec<u8>,
    predecessor: Vec<u8>,
    /// Shared by all who wait for one hot lock; a private one is handed to nobody.
    last_release: Option<LastRelease>,
    released_at: Instant,
    asked_at: Instant,
}

impl Recipe {
    pub(crate) fn new(work: ZooKeeperWork, number: usize, last_release: &LastRelease) -> Recipe {
        let name = crate::work::name(match work {
            ZooKeeperWork::Private => number as u64,
            ZooKeeperWork::Hot => HOT_NAME,
            ZooKeeperWork::Readers => READ_NAME,
        });
        let parent = [ROOT, b"/", &name].concat();
        Recipe {
            work,
            state: RecipeState::Connect,
            xid: 0,
            unmade: VecDeque::from([ROOT.to_vec(), parent.clone()]),
            parent,
            node: Vec::new(),
            predecessor: Vec::new(),
            last_release: (work == ZooKeeperWork::Hot).then(|| last_release.clone()),
            released_at: Instant::now(),
            asked_at: Instant::now(),
        }
    }

    fn unexpected(&self, error: i32) -> String {
        format!("ZooKeeper answered {error} to {:?}", self.state)
    }

    fn had(&mut self, now: Instant, tally: &mut Tally) -> NextStep {
        tally.done += 1;
        tally.latencies.record(now - self.asked_at);
        if let Some(last_release) = self.last_release.as_ref().and_then(|shared| shared.take()) {
            tally.second.record(now - last_release);
        }
        self.state = RecipeState::Delete;
        NextStep::MustContinue
    }

    fn look_at_children(&mut self, body: &[u8], now: Instant, tally: &mut Tally) -> NextStep {
        let mine = sequence(&self.node);
        let readers = self.work == ZooKeeperWork::Readers;
        let in_the_way = |child: &&[u8]| sequence(child) < mine && (!readers || is_writer(child));
        let before = wire::strings(body).filter(in_the_way).max_by_key(|child| sequence(child));
        match before {
            None => self.had(now, tally),
            Some(before) => {
                self.predecessor = [&self.parent, b"/".as_slice(), before].concat();
                self.state = RecipeState::Watch;
                NextStep::MustContinue
            }
        }
    }
}

fn is_writer(node: &[u8]) -> bool {
    node.windows(WRITER.len()).any(|part| part == WRITER)
}

/// The number ZooKeeper has put behind the name, always ten digits.
fn sequence(node: &[u8]) -> u64 {
    let digits = &node[node.len().saturating_sub(10)..];
    std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).unwrap_or(u64::MAX)
}

impl Client for Recipe {
    fn answer_len(bytes: &[u8]) -> Option<usize> {
        wire::frame_len(bytes)
    }

    fn ask(&mut self, now: Instant, out: &mut Vec<u8>) {
        self.xid += 1;
        let xid = self.xid;
        match self.state {
            RecipeState::Connect => wire::connect(out),
            RecipeState::MakeParents => {
                let path = self.unmade.front().expect("only while some are unmade");
                wire::create(xid, path, CreateMode::Persistent, out);
            }
            RecipeState::Create => {
                self.asked_at = now;
                let node = if self.work == ZooKeeperWork::Readers { READER } else { MUTEX };
                let path = [&self.parent, b"/".as_slice(), node].concat();
                wire::create(xid, &path, CreateMode::EphemeralSequential, out);
            }
            RecipeState::Children => wire::get_children(xid, &self.parent, out),
            RecipeState::Watch | RecipeState::Watching => {
                wire::get_data_and_watch(xid, &self.predecessor, out)
            }
            RecipeState::Delete => {
                self.released_at = now;
                if let Some(last_release) = &self.last_release {
                    last_release.set(Some(now));
                }
                wire::delete(xid, &self.node, out);
            }
        }
    }

    fn take(&mut self, frame: &[u8], now: Instant, tally: &mut Tally) -> Result<NextStep, String> {
        if self.state == RecipeState::Connect {
            if wire::session_of(frame) == 0 {
                return Err("ZooKeeper gave no session".into());
            }
            self.state = RecipeState::MakeParents;
            return Ok(NextStep::MustContinue);
        }
        let answer = wire::read(frame).ok_or("ZooKeeper sent a frame that is too short")?;
        let (error, body) = match answer {
            ServerReply::Event if self.state == RecipeState::Watching => {
                self.state = RecipeState::Children;
                return Ok(NextStep::MustContinue);
            }
            ServerReply::Event => return Err(format!("a watch fired in {:?}", self.state)),
            ServerReply::Reply { error, body, .. } => (error, body),
        };
        match (self.state, error) {
            (RecipeState::MakeParents, OK | NODE_EXISTS) => {
                self.unmade.pop_front();
                if self.unmade.is_empty() {
                    self.state = RecipeState::Create;
                }
                Ok(NextStep::MustContinue)
            }
            (RecipeState::Create, OK) => {
                let (path, _) = wire::string(body).ok_or("ZooKeeper named no node")?;
                self.node = path.to_vec();
                self.state = RecipeState::Children;
                Ok(NextStep::MustContinue)
            }
            (RecipeState::Children, OK) => Ok(self.look_at_children(body, now, tally)),
            (RecipeState::Watch, OK) => {
                self.state = RecipeState::Watching;
                Ok(NextStep::AwaitReply)
            }
            // It has gone in between.
            (RecipeState::Watch, NO_NODE) => {
                self.state = RecipeState::Children;
                Ok(NextStep::MustContinue)
            }
            (RecipeState::Delete, OK) => {
                if self.last_release.is_none() {
                    tally.second.record(now - self.released_at);
                }
                self.state = RecipeState::Create;
                Ok(NextStep::MayStop)
            }
            (
                RecipeState::Connect
                | RecipeState::MakeParents
                | RecipeState::Create
                | RecipeState::Children
                | RecipeState::Watch
                | RecipeState::Watching
                | RecipeState::Delete,
                error,
            ) => Err(self.unexpected(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn children(names: &[&str]) -> Vec<u8> {
        let mut body = (names.len() as u32).to_be_bytes().to_vec();
        for name in names {
            body.extend_from_slice(&(name.len() as u32).to_be_bytes());
            body.extend_from_slice(name.as_bytes());
        }
        body
    }

    #[test]
    fn the_lowest_holds_and_the_next_watches_the_one_before() {
        let mut recipe = Recipe::new(ZooKeeperWork::Hot, 0, &LastRelease::default());
        recipe.parent = b"/locks/hot".to_vec();
        recipe.node = b"/locks/hot/_c_-lock-0000000012".to_vec();
        let mut tally = Tally::default();
        let body = children(&[
            "_c_-lock-0000000011",
            "_c_-lock-0000000013",
            "_c_-lock-0000000009",
            "_c_-lock-0000000012",
        ]);
        recipe.look_at_children(&body, Instant::now(), &mut tally);
        assert_eq!(recipe.predecessor, b"/locks/hot/_c_-lock-0000000011");
        assert_eq!((recipe.state, tally.done), (RecipeState::Watch, 0));
        let body = children(&["_c_-lock-0000000013", "_c_-lock-0000000012"]);
        recipe.look_at_children(&body, Instant::now(), &mut tally);
        assert_eq!((recipe.state, tally.done), (RecipeState::Delete, 1));
    }

    #[test]
    fn a_reader_waits_for_writers_before_it_alone() {
        let mut recipe = Recipe::new(ZooKeeperWork::Readers, 0, &LastRelease::default());
        recipe.parent = b"/locks/read".to_vec();
        recipe.node = b"/locks/read/_c_-__READ__0000000012".to_vec();
        let mut tally = Tally::default();
        let body = children(&["_c_-__READ__0000000011", "_c_-__WRIT__0000000007", "_c_-__WRIT__0000000013"]);
        recipe.look_at_children(&body, Instant::now(), &mut tally);
        assert_eq!(recipe.predecessor, b"/locks/read/_c_-__WRIT__0000000007");
        assert_eq!((recipe.state, tally.done), (RecipeState::Watch, 0));
        let body = children(&["_c_-__READ__0000000011", "_c_-__WRIT__0000000013"]);
        recipe.look_at_children(&body, Instant::now(), &mut tally);
        assert_eq!((recipe.state, tally.done), (RecipeState::Delete, 1));
    }
}
