//! The dependencies between the top-level modules of the library: read from the sources, compared with a table.
//!
//! A module uses only what its row lists, and the rows contain no cycle. A new edge is a decision: add it here, or
//! turn the dependency around (the types that both sides need belong into `node_api` or `resp`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each module, and the modules it may use. Lowest layer first.
const ALLOWED: &[(&str, &[&str])] = &[
    ("acl", &[]),
    ("calendar", &[]),
    ("clock", &[]),
    ("shutdown", &[]),
    ("threads", &[]),
    ("redis_place", &[]),
    ("resp", &[]),
    ("retries", &[]),
    ("secret", &[]),
    ("log_text", &[]),
    ("metrics", &[]),
    ("notify", &[]),
    ("tls", &[]),
    ("cli", &["calendar", "clock", "secret", "tls"]),
    ("client_memory", &["clock"]),
    ("node_api", &["clock", "client_memory"]),
    ("storage", &["node_api"]),
    ("transport", &["node_api", "storage", "tls"]),
    ("events", &["clock", "client_memory", "node_api"]),
    ("tier1", &["clock", "client_memory", "events", "redis_place", "resp", "retries", "tls"]),
    ("tier2", &["acl", "clock", "client_memory", "events", "metrics", "node_api", "storage", "transport"]),
    (
        "server",
        &[
            "acl",
            "calendar",
            "clock",
            "client_memory",
            "events",
            "log_text",
            "metrics",
            "node_api",
            "resp",
            "retries",
            "tier1",
            "tier2",
            "tls",
        ],
    ),
    (
        "admin",
        &[
            "acl",
            "cli",
            "client_memory",
            "clock",
            "events",
            "metrics",
            "node_api",
            "resp",
            "server",
            "tier1",
            "tier2",
            "tls",
        ],
    ),
    ("config", &["cli", "redis_place", "secret", "server", "tls", "transport"]),
    ("backup", &["calendar", "cli", "clock", "config", "node_api", "storage"]),
    ("health", &["cli"]),
    ("join", &["backup", "cli", "clock"]),
    (
        "serve",
        &[
            "admin",
            "client_memory",
            "clock",
            "config",
            "events",
            "notify",
            "secret",
            "server",
            "shutdown",
            "threads",
            "tier1",
            "tier2",
            "tls",
        ],
    ),
];

type Edges = BTreeMap<String, BTreeMap<String, String>>;

fn source_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a readable source folder") {
        let path = entry.expect("a readable source folder").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The path of a file's module: `src/tier2/node/mod.rs` is `["tier2", "node"]`.
fn module_path(root: &Path, file: &Path) -> Vec<String> {
    let relative = file.strip_prefix(root).expect("below the source folder").with_extension("");
    let mut parts: Vec<String> = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.pop_if(|last| last == "mod");
    parts
}

/// The identifiers that a path may begin with after its prefix: `a::b` has one, `{a::b, c}` has two.
fn first_names(rest: &str) -> Vec<String> {
    let name = |text: &str| text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    let Some(list) = rest.strip_prefix('{') else { return vec![name(rest)] };
    let mut depth = 0;
    let mut names = vec![String::new()];
    for c in list.chars() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(String::new()),
            _ => names.last_mut().expect("never empty").push(c),
        }
    }
    names.iter().map(|part| name(part)).collect()
}

/// The top-level modules a source text of the module `path` uses.
fn used_modules(path: &[String], text: &str, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join("\n");
    let mut used = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        used.extend(first_names(&code[at + "crate::".len()..]));
    }
    // A chain of `super::` as long as the module's own path ends at the root of the crate.
    let chain = "super::".repeat(path.len());
    for (at, _) in code.match_indices(&chain) {
        used.extend(first_names(&code[at + chain.len()..]));
    }
    used.retain(|name| modules.contains(name) && *name != path[0]);
    used
}

/// Which module uses which, with one file as the witness.
fn edges(root: &Path, modules: &BTreeSet<String>) -> Edges {
    let mut files = Vec::new();
    rust_files(root, &mut files);
    let mut edges = Edges::new();
    for file in files {
        let path = module_path(root, &file);
        if !modules.contains(&path[0]) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a readable source file");
        for used in used_modules(&path, &text, modules) {
            edges.entry(path[0].clone()).or_default().insert(used, path.join("/"));
        }
    }
    edges
}

/// The modules that `lib.rs` declares.
fn declared_modules(root: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root.join("lib.rs")).expect("a readable lib.rs");
    let declared = text.lines().filter_map(|line| {
        let line = line.trim().strip_suffix(';')?;
        line.strip_prefix("pub mod ").or_else(|| line.strip_prefix("mod "))
    });
    declared.map(str::to_owned).collect()
}

#[test]
fn every_module_has_a_row() {
    let rows: BTreeSet<String> = ALLOWED.iter().map(|(module, _)| (*module).to_owned()).collect();
    assert_eq!(rows.len(), ALLOWED.len(), "a module has two rows");
    assert_eq!(declared_modules(&source_root()), rows);
}

#[test]
fn modules_use_only_lower_layers() {
    let mut below: BTreeSet<&str> = BTreeSet::new();
    for (module, uses) in ALLOWED {
        for used in *uses {
            assert!(below.contains(used), "{module} may use {used}, which is not in a row above it: a cycle");
        }
        below.insert(module);
    }
}

#[test]
fn the_sources_keep_to_the_table() {
    let root = source_root();
    let modules = declared_modules(&root);
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let mut forbidden = Vec::new();
    for (module, uses) in edges(&root, &modules) {
        for (used, witness) in uses {
            if !allowed.get(module.as_str()).is_some_and(|row| row.contains(&used.as_str())) {
                forbidden.push(format!("{module} uses {used} (in {witness})"));
            }
        }
    }
    assert!(forbidden.is_empty(), "forbidden dependencies: {forbidden:#?}");
}

/// Ways to ask which tier serves something.
const TIER_QUESTIONS: &[&str] = &[
    "Tier::",
    ".tier()",
    ".routes.router",
    "has_upstream_for(",
    "has_correctness_routes(",
    "route_plain(",
    "route_lock(",
];

/// Where they may be asked, and why.
const MAY_ASK: &[(&str, &str)] = &[
    ("server/routing/", "decides"),
    ("tier1/", "is a tier"),
    ("tier2/", "is a tier"),
    ("config.rs", "reads the flags that say it"),
    ("events/publish_feed.rs", "labels the events of Tier 2's own feed"),
];

#[test]
fn only_the_router_asks_which_tier_serves() {
    let root = source_root();
    let mut files = Vec::new();
    rust_files(&root, &mut files);
    let mut asked = Vec::new();
    for file in files {
        let name = file.strip_prefix(&root).expect("below the source folder").to_string_lossy().into_owned();
        let is_test = name.ends_with("/tests.rs"); // a file of its own, behind `#[cfg(test)]` where it is named
        if is_test || MAY_ASK.iter().any(|(place, _)| name.starts_with(place)) {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a readable source file");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            let line = line.split("//").next().unwrap_or_default();
            // A setting of this name, and a flag, are none.
            let line = line.replace("DefaultTier", "");
            if TIER_QUESTIONS.iter().any(|question| line.contains(question)) {
                asked.push(format!("{name}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(
        asked.is_empty(),
        "the router decides once, as a value (server/routing/plan.rs); these ask again: {asked:#?}"
    );
}

#[test]
fn paths_are_found_in_all_their_forms() {
    let modules: BTreeSet<String> = ["a", "b", "c", "d"].map(str::to_owned).into();
    let path = vec!["a".to_owned(), "inner".to_owned()];
    let used = |text: &str| used_modules(&path, text, &modules).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(used("use crate::b::Thing;"), "b");
    assert_eq!(used("use crate::{b::{c, Other}, d};"), "b d");
    assert_eq!(used("fn f() { crate::c::run() }"), "c");
    assert_eq!(used("use super::super::d::Thing;"), "d");
    assert_eq!(used("use super::b; // crate::c\nuse crate::a::x;"), "");
}
