//! Everything read through every node: what a client sees must be the same whichever node it asks.

use std::collections::hash_map::DefaultHasher;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use crate::client::Word;
use crate::cluster::Cluster;
use crate::process::poll_until;
use crate::resp::{Connection, Value};

const REPLY_WITHIN: Duration = Duration::from_secs(30);
/// Keys may still be running out: it is looked again until nothing differs.
const EQUAL_WITHIN: Duration = Duration::from_secs(40);
/// Databases that attacks write to.
const DATABASES: u64 = 3;
/// Elements of a collection read at once.
const SLICE: u64 = 500;
/// Bytes of strings read at once.
const BATCH_BYTES: u64 = 1 << 20;

/// What one node shows of a key: its type and a hash of all that is in it.
type KeyDump = BTreeMap<(u64, Vec<u8>), (String, u64)>;

/// Compares what all nodes show. The number of keys, or the first difference that stays.
pub fn compare(cluster: &Cluster) -> Result<usize, String> {
    let mut last = Err("not compared".to_string());
    poll_until(EQUAL_WITHIN, || {
        last = compare_once(cluster);
        last.is_ok()
    });
    last
}

fn compare_once(cluster: &Cluster) -> Result<usize, String> {
    let mut first: Option<(u64, KeyDump)> = None;
    for node in cluster.nodes.iter().filter(|node| node.runs()) {
        let shown = NodeReader::open(node.address).and_then(|mut reader| reader.everything());
        let shown = shown.map_err(|error| format!("node {}: {error}", node.id))?;
        let Some((other, known)) = &first else {
            first = Some((node.id, shown));
            continue;
        };
        let differs = known.iter().find(|(key, value)| shown.get(*key) != Some(value));
        let differs =
            differs.map(|(key, _)| key).or_else(|| shown.keys().find(|key| !known.contains_key(*key)));
        if let Some(key) = differs {
            let name: String = key.1.escape_ascii().to_string().chars().take(100).collect();
            return Err(format!(
                "database {} key {name}: node {other} shows {:?}, node {} shows {:?}",
                key.0,
                known.get(key),
                node.id,
                shown.get(key)
            ));
        }
    }
    Ok(first.map_or(0, |(_, shown)| shown.len()))
}

struct NodeReader(Connection);

impl NodeReader {
    fn open(address: SocketAddr) -> Result<NodeReader, String> {
        Connection::open(address).map(NodeReader).map_err(|error| error.to_string())
    }

    fn ask(&mut self, words: &[Vec<u8>]) -> Result<Value, String> {
        match self.0.ask(words, REPLY_WITHIN) {
            Ok(Value::Error(line)) => {
                let name: String = words
                    .iter()
                    .flat_map(|word| word.escape_ascii().to_string().chars().take(40).collect::<Vec<_>>())
                    .collect();
                Err(format!("{name}: {line}"))
            }
            Ok(value) => Ok(value),
            Err(error) => Err(format!("{error:?}")),
        }
    }

    fn everything(&mut self) -> Result<KeyDump, String> {
        let mut shown = KeyDump::new();
        for database in 0..DATABASES {
            self.ask(&["SELECT".word(), database.word()])?;
            for key in self.keys()? {
                if !key.starts_with(b"background:") {
                    let value = self.value(&key)?;
                    shown.insert((database, key), value);
                }
            }
        }
        Ok(shown)
    }

    fn keys(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let (mut keys, mut cursor) = (Vec::new(), b"0".to_vec());
        loop {
            let reply = self.ask(&["SCAN".word(), cursor, "COUNT".word(), 1000.word()])?;
            let [next, names] = reply.array() else { return Err(format!("SCAN: {reply:?}")) };
            keys.extend(names.array().iter().map(|name| name.bytes().to_vec()));
            cursor = next.bytes().to_vec();
            if cursor == b"0" {
                keys.sort();
                keys.dedup();
                return Ok(keys);
            }
        }
    }

    fn value(&mut self, key: &[u8]) -> Result<(String, u64), String> {
        let kind = match self.ask(&["TYPE".word(), key.to_vec()])? {
            Value::Simple(kind) => String::from_utf8_lossy(&kind).into_owned(),
            other => return Err(format!("TYPE: {other:?}")),
        };
        let mut hash = DefaultHasher::new();
        match kind.as_str() {
            "string" => self.string(key, &mut hash)?,
            "list" => self.ranges("LLEN", "LRANGE", key, &mut hash)?,
            "zset" => self.ranges("ZCARD", "ZRANGE", key, &mut hash)?,
            "set" => self.scanned("SSCAN", key, &mut hash)?,
            "hash" => self.scanned("HSCAN", key, &mut hash)?,
            _ => {}
        }
        Ok((kind, hash.finish()))
    }

    fn string(&mut self, key: &[u8], hash: &mut DefaultHasher) -> Result<(), String> {
        let length = self.ask(&["STRLEN".word(), key.to_vec()])?.integer();
        length.hash(hash);
        let mut at = 0;
        while at < length as u64 {
            let end = at + BATCH_BYTES - 1;
            let piece = self.ask(&["GETRANGE".word(), key.to_vec(), at.word(), end.word()])?;
            format!("{piece:?}").hash(hash);
            at = end + 1;
        }
        Ok(())
    }

    fn ranges(
        &mut self,
        length: &str,
        range: &str,
        key: &[u8],
        hash: &mut DefaultHasher,
    ) -> Result<(), String> {
        let length = self.ask(&[length.word(), key.to_vec()])?.integer();
        length.hash(hash);
        let slice = self.slice_of(key, length as u64)?;
        let mut at = 0;
        while at < length as u64 {
            let items = self.ask(&[range.word(), key.to_vec(), at.word(), (at + slice - 1).word()])?;
            format!("{items:?}").hash(hash);
            at += slice;
        }
        Ok(())
    }

    /// Fewer at once where elements are large.
    fn slice_of(&mut self, key: &[u8], length: u64) -> Result<u64, String> {
        let usage = match self.ask(&["MEMORY".word(), "USAGE".word(), key.to_vec()]) {
            Ok(Value::Integer(bytes)) => bytes.unsigned_abs(),
            _ => return Ok(20),
        };
        let element = (usage / length.max(1)).max(1);
        Ok((BATCH_BYTES / element).clamp(1, SLICE))
    }

    /// In no order that is promised, so sorted here.
    fn scanned(&mut self, scan: &str, key: &[u8], hash: &mut DefaultHasher) -> Result<(), String> {
        let (mut items, mut cursor) = (Vec::new(), b"0".to_vec());
        loop {
            let reply = self.ask(&[scan.word(), key.to_vec(), cursor, "COUNT".word(), 50.word()])?;
            let [next, found] = reply.array() else { return Err(format!("{scan}: {reply:?}")) };
            let words = found.array();
            let step = if scan == "HSCAN" { 2 } else { 1 };
            items.extend(words.chunks(step).map(|chunk| format!("{chunk:?}")));
            cursor = next.bytes().to_vec();
            if cursor == b"0" {
                break;
            }
        }
        items.sort();
        items.dedup();
        items.hash(hash);
        Ok(())
    }
}
