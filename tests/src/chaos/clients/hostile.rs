//! A hostile client among the others: scripts of the hostile suite and commands far beyond their bytes, one after the
//! other, whatever is answered. What it must not do is harm anybody else.

use super::super::recorder::Epoch;
use super::LoadClient;
use crate::hostile::{scripts, AttackBody};

impl LoadClient {
    pub(super) async fn hostile_round(&mut self, epoch: &Epoch) {
        // A steady nuisance; how much of a node's time it can have is not what a fault run measures.
        self.pause_ms(100).await;
        let key = format!("hostile:{}", self.rng.below(20));
        if self.rng.per_mille(600) {
            let attacks = scripts::all();
            let attack = self.rng.pick(&attacks).expect("there are scripts");
            let body = match attack.run {
                AttackBody::Script(body) => body.as_bytes().to_vec(),
                AttackBody::GeneratedScript(make) => make(),
                AttackBody::Commands(_) => return,
            };
            self.exchange(epoch, &[b"EVAL".to_vec(), body, b"1".to_vec(), key.into_bytes()], 0).await;
            return;
        }
        for words in self.hostile_commands(&key) {
            self.exchange(epoch, &words, 0).await;
        }
    }

    fn hostile_commands(&mut self, key: &str) -> Vec<Vec<Vec<u8>>> {
        let word = |text: &str| text.as_bytes().to_vec();
        let large = vec![b'h'; 60_000];
        match self.rng.below(7) {
            0 => {
                let watch = (0..80).map(|number| {
                    let name = format!("{key}{number}{}", "w".repeat(60_000)).into_bytes();
                    vec![word("WATCH"), name]
                });
                let rest = [vec![word("MULTI")], vec![word("SET"), word(key), word("x")], vec![word("EXEC")]];
                watch.chain(rest).collect()
            }
            1 => {
                let mut commands = vec![vec![word("SET"), word(key), large], vec![word("MULTI")]];
                let mget: Vec<_> = std::iter::once(word("MGET")).chain((0..900).map(|_| word(key))).collect();
                commands.extend((0..12).map(|_| mget.clone()));
                commands.push(vec![word("EXEC")]);
                commands
            }
            2 => vec![vec![word("KEYS"), format!("{}b", "*a".repeat(500)).into_bytes()]],
            3 => {
                let mset = (0..28).flat_map(|number| [format!("{key}:{number}").into_bytes(), large.clone()]);
                vec![std::iter::once(word("MSET")).chain(mset).collect()]
            }
            4 => {
                let add = (0..900).map(|number| format!("m{number}").into_bytes());
                let set = format!("{key}:set").into_bytes();
                let sets = (0..900).map(|_| set.clone());
                vec![
                    [word("SADD"), set.clone()].into_iter().chain(add).collect(),
                    [word("SUNIONSTORE"), format!("{key}:to").into_bytes()].into_iter().chain(sets).collect(),
                ]
            }
            5 => vec![
                vec![word("SETRANGE"), word(key), word("1048576"), word("x")],
                vec![word("DEL"), word(key)],
            ],
            _ => vec![vec![word("SCAN"), word("0"), word("COUNT"), word("1000000000")], vec![word("DBSIZE")]],
        }
    }
}
