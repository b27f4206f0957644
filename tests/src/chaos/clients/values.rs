//! Clients that keep values of every size, from a byte to a megabyte: each has a key that nobody else writes, so what it reads
//! must be what it wrote last. A write of unknown outcome may still happen any time later: then it takes another key, and the old
//! one is deleted later, so that the state of a long run does not grow.

use super::super::recorder::Epoch;
use super::super::replies::owner_name;
use super::LoadClient;
use crate::resp::Value;

/// Made on the leader: larger than a word of a command may be. Not one of the scripts that are recognised and logged as such.
const STORE: &str = "local tail = string.rep('v', tonumber(ARGV[2])) \
    redis.call('SET', KEYS[1], ARGV[1] .. ':' .. tail) return redis.call('STRLEN', KEYS[1])";
/// Two keys of one script: both or neither.
const STORE_AND_PUSH: &str =
    "redis.call('SET', KEYS[1], ARGV[1] .. ':' .. string.rep('v', tonumber(ARGV[2]))) \
    redis.call('RPUSH', KEYS[1] .. ':log', ARGV[1]) redis.call('LTRIM', KEYS[1] .. ':log', -5, -1) return 1";
const SIZES: [u64; 9] = [0, 1, 10, 100, 1_000, 10_000, 60_000, 300_000, 1_000_000];

/// What its key must show.
#[derive(Default)]
pub(super) struct Register {
    key: u64,
    value: Option<(u64, u64)>,
    /// Keys of earlier writes of unknown outcome, not deleted yet.
    abandoned: Vec<u64>,
}

/// A key, and the list that goes with it.
fn keys(number: u64) -> [String; 2] {
    [format!("value:{number}"), format!("value:{number}:log")]
}

enum Stored {
    Yes,
    No,
    Unknown,
}

fn text((number, size): (u64, u64)) -> Vec<u8> {
    let mut text = format!("{}:", owner_name(number)).into_bytes();
    text.resize(text.len() + size as usize, b'v');
    text
}

impl LoadClient {
    pub(super) async fn value_round(&mut self, epoch: &Epoch) {
        if self.register.key == 0 || self.rng.per_mille(20) {
            self.take_another_key();
            self.delete_abandoned(epoch).await;
            return;
        }
        let [key, _] = keys(self.register.key);
        let size = SIZES[self.rng.below(SIZES.len() as u64) as usize];
        let value = (self.recorder.number(), size);
        match self.store(epoch, &key, value).await {
            Stored::Yes => self.register.value = Some(value),
            Stored::No => {}
            Stored::Unknown => {
                self.take_another_key();
                return;
            }
        }
        self.read_back(epoch, &key).await;
        self.pause_ms(20).await;
    }

    fn take_another_key(&mut self) {
        self.register.abandoned.push(self.register.key);
        (self.register.key, self.register.value) = (self.recorder.number(), None);
    }

    async fn delete_abandoned(&mut self, epoch: &Epoch) {
        for number in std::mem::take(&mut self.register.abandoned) {
            let [key, log] = keys(number);
            let reply = self.exchange(epoch, &["DEL", &key, &log], 0).await;
            if !matches!(reply, Some((_, Some(Value::Integer(_))))) {
                self.register.abandoned.push(number);
            }
        }
    }

    async fn store(&mut self, epoch: &Epoch, key: &str, value: (u64, u64)) -> Stored {
        let (number, size) = (owner_name(value.0), value.1.to_string());
        let whole = text(value);
        let words: Vec<&[u8]> = match self.rng.below(3) {
            0 if value.1 < 60_000 => vec![b"SET", key.as_bytes(), &whole],
            1 => vec![
                b"EVAL",
                STORE_AND_PUSH.as_bytes(),
                b"1",
                key.as_bytes(),
                number.as_bytes(),
                size.as_bytes(),
            ],
            _ => vec![b"EVAL", STORE.as_bytes(), b"1", key.as_bytes(), number.as_bytes(), size.as_bytes()],
        };
        let Some((_, reply)) = self.exchange(epoch, &words, 0).await else { return Stored::No };
        match reply {
            Some(Value::Error(line)) if line.starts_with("INDETERMINATE") => Stored::Unknown,
            // Refused for certain; a hostile neighbour may have used up memory or the scripts' share of time.
            Some(Value::Error(_)) => Stored::No,
            Some(_) => Stored::Yes,
            None => Stored::Unknown,
        }
    }

    async fn read_back(&mut self, epoch: &Epoch, key: &str) {
        let Some((_, Some(reply))) = self.exchange(epoch, &["GET", key], 0).await else { return };
        let expected = self.register.value.map(text);
        let right = match (&reply, &expected) {
            (Value::Error(line), _) => line.starts_with("UNAVAILABLE") || line.starts_with("INDETERMINATE"),
            (Value::Bulk(bytes), Some(expected)) => bytes == expected,
            (Value::NullBulk, None) => true,
            _ => false,
        };
        if !right {
            let shown: String = format!("{reply:?}").chars().take(60).collect();
            let wanted = self.register.value;
            self.recorder
                .run_state
                .report_unexpected(format!("{key} must hold {wanted:?} (number, size), but shows {shown}"));
        }
    }
}
