//! Writes seeds in the formats of this source tree: entries, effects and snapshots of a machine with a little of everything.
//! `cargo run --example seeds -- FOLDER` makes `FOLDER/<target>/…`; `scripts/fuzz` calls it before it fuzzes.

use redfence_core_fuzz::Leader;
use std::fs;
use std::path::Path;

const SCRIPTS: [&str; 4] = [
    "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])",
    "for i = 1, 5 do redis.call('RPUSH', 'l', i) end redis.call('DEL', 's') return {1, 'x', false}",
    "return redis.pcall('INCR', 'l')",
    "redis.call('ZADD', 'z', 1, 'm') redis.call('PEXPIRE', 'z', 1000) return redis.status_reply('OK')",
];

fn write(folder: &Path, target: &str, name: &str, bytes: &[u8]) {
    let folder = folder.join(target);
    fs::create_dir_all(&folder).expect("the folder can be made");
    fs::write(folder.join(name), bytes).expect("the file can be written");
}

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    let folder = Path::new(&folder);
    let mut leader = Leader::new();
    for (number, body) in SCRIPTS.iter().enumerate() {
        let logged = leader.request(&[b"EVAL", body.as_bytes(), b"1", b"k1", b"value"]);
        write(folder, "effects", &format!("script-{number}"), &logged);
        write(folder, "script", &format!("text-{number}"), &[b"\0", body.as_bytes()].concat());
    }
    for (number, entry) in leader.entries.iter().enumerate() {
        let framed = [&(entry.len() as u16).to_le_bytes(), &entry[..]].concat();
        write(folder, "entry", &format!("entry-{number}"), &framed);
    }
    let pieces = leader.snapshot();
    // Without what the targets put around them: version and number in front, the checksum behind.
    let bodies: Vec<&[u8]> = pieces.iter().map(|piece| &piece[5..piece.len() - 4]).collect();
    write(folder, "snapshot", "pieces", &bodies.concat());
    let framed: Vec<u8> = bodies.iter().flat_map(|body| [&(body.len() as u16).to_le_bytes(), *body].concat()).collect();
    write(folder, "snapshot_stream", "pieces", &framed);
    let file: Vec<u8> = pieces.iter().flat_map(|piece| [&(piece.len() as u32).to_le_bytes(), &piece[..]].concat()).collect();
    write(folder, "snapshot_stream", "file", &file);
}
