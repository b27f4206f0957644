//! ZooKeeper by the recipe Curator's `InterProcessMutex` uses: an ephemeral sequential node a contender, the lowest holds the lock, and
//! everybody else watches the one before it.
//!
//! One session a client, as an application has. The parents of the locks are made once: that is not what is measured.

pub(crate) mod wire;

use crate::load_generator::{Client, NextStep, Tally};
use crate::work::hot::LastRelease;
use std::collections::VecDeque;
use std::time::Instant;
use wire::{CreateMode, ServerReply, NODE_EXISTS, NO_NODE, OK};

const ROOT: &[u8] = b"/locks";

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
    /// `name` has no slash in it.
    pub(crate) fn new(name: &[u8], last_release: Option<&LastRelease>) -> Recipe {
        let parent = [ROOT, b"/", name].concat();
        Recipe {
            state: RecipeState::Connect,
            xid: 0,
            unmade: VecDeque::from([ROOT.to_vec(), parent.clone()]),
            parent,
            node: Vec::new(),
            predecessor: Vec::new(),
            last_release: last_release.cloned(),
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
        let before =
            wire::strings(body).filter(|child| sequence(child) < mine).max_by_key(|child| sequence(child));
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
                let path = [&self.parent, b"/_c_-lock-".as_slice()].concat();
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
        let mut recipe = Recipe::new(b"hot", None);
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
}
