//! The rules of `ARCHITECTURE.md` that names in the sources can show. Between modules of the proxy: `module_graph.rs`.

use std::path::{Path, PathBuf};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a readable source folder") {
        let path = entry.expect("a readable source folder").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Every line of code below the folder, with where it is. Comments and tests are none.
fn code_lines(folder: &str) -> Vec<(String, String)> {
    let root = repository();
    let mut files = Vec::new();
    rust_files(&root.join(folder), &mut files);
    let mut lines = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("below it").to_string_lossy().into_owned();
        if name.ends_with("tests.rs") || name.contains("/tests/") {
            continue;
        }
        let text = read(&file);
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            lines.push((format!("{name}:{}", at + 1), line.to_owned()));
        }
    }
    assert!(lines.len() > 100, "{folder} has hardly any code");
    lines
}

#[track_caller]
fn assert_none(rule: &str, lines: impl Iterator<Item = (String, String)>) {
    let found: Vec<String> = lines.map(|(place, line)| format!("{place}: {}", line.trim())).collect();
    assert!(found.is_empty(), "{rule}: {found:#?}");
}

#[test]
fn the_core_depends_on_no_io() {
    let manifest = read(&repository().join("core/Cargo.toml"));
    let dependencies = manifest.split("\n[dependencies]\n").nth(1).expect("a list of dependencies");
    let dependencies = dependencies.split("\n[").next().unwrap_or_default();
    let names = dependencies.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    let io = ["tokio", "mio", "socket2", "raft", "raft-engine", "rustls", "redis-module", "rand"];
    let found: Vec<&str> = names.filter(|name| io.contains(name)).collect();
    assert!(found.is_empty(), "core may not know {found:?}");
    let io = ["TcpStream", "TcpListener", "UdpSocket", "std::fs", "std::thread::", "std::process"];
    let lines = code_lines("core/src").into_iter();
    assert_none("core does no I/O", lines.filter(|(_, line)| io.iter().any(|name| line.contains(name))));
}

#[test]
fn the_server_sees_of_tier_2_its_handle_and_its_error_texts() {
    let lines = code_lines("proxy/src/server").into_iter();
    let is_forbidden = |line: &str| {
        let elsewhere = |(at, name): (usize, &str)| {
            let rest = &line[at + name.len()..];
            !rest.starts_with("handle") && !rest.starts_with("refusals")
        };
        line.match_indices("crate::tier2::").any(elsewhere) || line.contains("raft::")
    };
    assert_none("server may not use it", lines.filter(|(_, line)| is_forbidden(line)));
}

#[test]
fn the_rules_of_the_tiers_are_in_the_router() {
    let lines = code_lines("proxy/src/server").into_iter();
    let outside = lines.filter(|(place, _)| !place.starts_with("proxy/src/server/routing/router.rs"));
    assert_none("router.rs decides the tier", outside.filter(|(_, line)| line.contains("Tier::")));
}

#[test]
fn the_layout_of_tier_1_keys_is_in_the_record_alone() {
    let names = ["__fence__", "__hwm__", "__wait__", "__waiter__", "__wake__"];
    for folder in ["core/src", "proxy/src", "module/src"] {
        let lines = code_lines(folder).into_iter();
        let outside = lines.filter(|(place, _)| !place.starts_with("module/src/record"));
        assert_none(
            "only module/src/record and lua know it",
            outside.filter(|(_, line)| names.iter().any(|name| line.contains(name))),
        );
    }
}

#[test]
fn the_raft_node_takes_its_time_from_its_inputs() {
    let clocks = ["Instant::now", "SystemTime::now", "wall_us()", "tokio::time"];
    let lines = code_lines("proxy/src/tier2").into_iter();
    // Around the node, not in it: the threads, and the clients' side of it.
    let in_node = lines.filter(|(place, _)| {
        !place.starts_with("proxy/src/tier2/shell/") && !place.starts_with("proxy/src/tier2/handle/")
    });
    assert_none(
        "it asks a clock",
        in_node.filter(|(_, line)| clocks.iter().any(|clock| line.contains(clock))),
    );
}

/// A hash without a secret lets a client choose keys that all share a place, and each look at them takes as long as they are many.
#[test]
fn tables_of_what_clients_name_have_a_secret() {
    // Numbers that the node gives out, digests, and in three files the names of commands.
    let given_out = [
        "u64",
        "Ticket",
        "OrderKey",
        "ConnectionKey",
        "SessionId",
        "SessionSlot",
        "LockSlot",
        "QueueEntrySlot",
        "RequestId",
        "UserTag",
        "Sha",
        "(SessionSlot",
        "K",
        "T",
    ];
    let of_commands =
        ["proxy/src/server/routing/keys.rs", "proxy/src/acl/commands.rs", "proxy/src/tier1/command_table.rs"];
    for folder in ["core/src", "proxy/src"] {
        let fast: &[&str] =
            if folder == "core/src" { &["HashMap<", "HashSet<"] } else { &["FxHashMap<", "FxHashSet<"] };
        let lines = code_lines(folder).into_iter();
        let others = lines.filter(|(place, _)| !of_commands.iter().any(|file| place.starts_with(file)));
        assert_none(
            "its key may be a client's choice: use the standard library's, or HashKey in the core",
            others.filter(|(_, line)| {
                fast.iter().filter_map(|name| line.split_once(name)).any(|(_, rest)| {
                    let key = rest.split([',', '>']).next().unwrap_or_default();
                    !given_out.contains(&key)
                })
            }),
        );
    }
    let hashes = code_lines("core/src").into_iter().filter(|(_, line)| line.contains("Hash64::of_name("));
    let elsewhere = hashes.filter(|(place, _)| !place.starts_with("core/src/machine/store/hash_key.rs"));
    assert_none("only HashKey knows the secret", elsewhere);
}
