//! The reference pages against a running node, the flags and the sources.

use super::pages::{check_generated, code_words, doc, files_below, read, root};
use clap::CommandFactory;
use redfence_tests::cluster::{Cluster, Options};
use redfence_tests::process::free_address;
use redfence_tests::redis::{self, Redis};
use redfence_tests::resp::Value;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

const ASK: Duration = Duration::from_secs(20);

fn ask(cluster: &Cluster, words: &[&str]) -> Value {
    let reply = cluster.nodes[0].ask(words, ASK);
    reply.unwrap_or_else(|| panic!("no answer to {words:?}\n{}", cluster.log()))
}

fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        other => panic!("not an array: {other:?}"),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Bulk(bytes) | Value::Simple(bytes) | Value::Verbatim(bytes) => {
            String::from_utf8_lossy(bytes).into_owned()
        }
        Value::Integer(number) => number.to_string(),
        other => panic!("no text: {other:?}"),
    }
}

fn page_of(command: &str) -> String {
    format!("commands/{}.md", command.replace('.', "-"))
}

#[test]
fn every_command_has_its_entry() {
    let cluster = Cluster::start(&Options::nodes(1));
    let names: Vec<String> = items(ask(&cluster, &["COMMAND", "LIST"])).iter().map(text).collect();
    assert!(names.len() > 100, "{names:?}");
    let keyspace = code_words(&doc("keyspace.md"));
    let mut wrong = Vec::new();
    for name in names {
        if !name.starts_with("lock.") && !name.starts_with("fence.") {
            if !keyspace.contains(&name.to_uppercase()) {
                wrong.push(format!("docs/keyspace.md does not name {}", name.to_uppercase()));
            }
            continue;
        }
        let info = items(items(ask(&cluster, &["COMMAND", "INFO", &name])).remove(0));
        let docs = items(items(ask(&cluster, &["COMMAND", "DOCS", &name])).remove(1));
        if let Err(why) = check_generated(&page_of(&name), &command_block(&name, &info, &docs)) {
            wrong.push(why);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What `COMMAND DOCS` and `COMMAND INFO` tell of a command, for people.
fn command_block(name: &str, info: &[Value], docs: &[Value]) -> String {
    let doc = |key: &str| {
        let pair = docs.chunks_exact(2).find(|pair| text(&pair[0]) == key);
        pair.map(|pair| text(&pair[1])).unwrap_or_else(|| panic!("COMMAND DOCS {name} has no {key}"))
    };
    let list = |at: usize| items(info[at].clone()).iter().map(text).collect::<Vec<_>>().join(", ");
    let mut block = format!("{}\n\n```\n{} {}\n```\n\n", doc("summary"), name.to_uppercase(), doc("syntax"));
    let _ = writeln!(block, "| arity | flags | ACL categories |\n| --- | --- | --- |");
    let _ = writeln!(block, "| {} | {} | {} |", text(&info[1]), list(2), list(6));
    block
}

#[test]
fn every_flag_has_its_entry() {
    let cli = redfence::cli::Cli::command();
    let serve = cli.find_subcommand("serve").expect("the command serve");
    let mut table = String::from("| flag | environment | default | what |\n| --- | --- | --- | --- |\n");
    for argument in serve.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let Some(flag) = argument.get_long() else { continue };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let (what, default) = match help.split_once(" [default: ") {
            Some((what, default)) => (what.to_owned(), format!("`{}`", default.trim_end_matches(']'))),
            None => (help, String::new()),
        };
        let value = argument.get_value_names().unwrap_or_default().join(" ").replace('|', "\\|");
        let value = if matches!(flag, "join" | "redis-tls") { String::new() } else { format!(" {value}") };
        let variable = argument.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let what = what.replace('|', "\\|");
        let _ = writeln!(table, "| `--{flag}{value}` | `{variable}` | {default} | {what} |");
    }
    check_generated("configuration.md", &table).unwrap_or_else(|why| panic!("{why}"));
    let page = doc("configuration.md");
    for setting in redfence_core::machine::settings::Setting::ALL {
        assert!(code_words(&page).contains(setting.as_str()), "docs/configuration.md: {}", setting.as_str());
    }
}

/// The flags of the other programs: in the row of its page that names the program, or anywhere on the page.
#[test]
fn every_flag_of_the_other_programs_has_its_entry() {
    let cli = redfence::cli::Cli::command();
    let operations = doc("operations.md");
    let row = |program: &str| {
        let row = operations.lines().find(|line| line.starts_with(&format!("| `redfence {program}` |")));
        row.unwrap_or_else(|| panic!("docs/operations.md has no row for redfence {program}")).to_owned()
    };
    let testserver = read(&root().join("clients/TESTSERVER.md"));
    let programs = doc("programs.md");
    let section = |title: &str| {
        let (_, rest) =
            programs.split_once(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("no {title}"));
        rest.split("\n## ").next().unwrap_or_default().to_owned()
    };
    let is_shown =
        |program: &&clap::Command| !program.is_hide_set() && !matches!(program.get_name(), "serve" | "help");
    for program in cli.get_subcommands().filter(is_shown) {
        let entry = match program.get_name() {
            "backup" | "restore" | "health" | "join" => row(program.get_name()),
            "testserver" => testserver.clone(),
            "locks" | "cluster" | "watch" | "run" | "elect" | "drill" | "fence-sql" => {
                section("Connection") + &section(&format!("redfence {}", program.get_name()))
            }
            other => panic!("redfence {other}: say here which page describes it"),
        };
        let flags = code_words(&entry);
        for argument in program.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let Some(flag) = argument.get_long().filter(|flag| *flag != "help") else { continue };
            assert!(
                flags.contains(&format!("--{flag}")),
                "redfence {}: --{flag} has no entry",
                program.get_name()
            );
        }
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the admin listener");
    stream.set_read_timeout(Some(ASK)).expect("a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// The names in the first column of the page's tables that begin so.
fn first_column(page: &str, prefix: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    cells.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with(prefix)).collect()
}

#[test]
fn every_metric_has_its_entry() {
    let admin = free_address();
    let cluster = Cluster::start(&Options::nodes(1).flag("--admin", &admin.to_string()));
    let scrape = get(admin, "/metrics");
    let families = scrape.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exported: BTreeSet<String> =
        families.map(|line| line.split(' ').next().unwrap_or("").to_owned()).collect();
    assert!(exported.len() > 20, "{scrape}");
    let page = doc("metrics.md");
    let (page, module) = page.split_once("\n## The module\n").expect("a part about the module");
    assert_eq!(first_column(page, "redfence_"), exported, "docs/metrics.md (left) and /metrics (right)");
    let info = text(&ask(&cluster, &["INFO", "redfence"]));
    for line in info.lines().filter_map(|line| line.split_once(':')) {
        let name = format!("redfence_{}", line.0);
        let known = exported.contains(&name) || code_words(page).contains(line.0);
        assert!(known, "docs/metrics.md does not tell of INFO redfence {}", line.0);
    }
    let redis = Redis::start(&redis::Options::with_module());
    for (name, _) in text(&redis.ask(&["INFO", "redfence"])).lines().filter_map(|line| line.split_once(':')) {
        assert!(code_words(module).contains(name), "docs/metrics.md does not tell of the module's {name}");
    }
}

/// The first words of error texts in the sources: `"CODE text"` right behind what makes an error of it.
fn error_codes(source: &str) -> BTreeSet<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or("");
    let openings = ["Refusal::new(", "fixed(", "error(", "&str ="];
    let mut codes = BTreeSet::new();
    for (at, _) in source.match_indices('"') {
        let literal = source[at + 1..].strip_prefix('-').unwrap_or(&source[at + 1..]);
        let Some((word, _)) = literal.split_once(' ') else { continue };
        let is_code = word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        let before = source[..at].trim_end();
        let before = before.strip_suffix("format!(").unwrap_or(before).trim_end();
        if is_code && openings.iter().any(|opening| before.ends_with(opening)) {
            codes.insert(word.to_owned());
        }
    }
    codes
}

#[test]
fn every_error_code_has_its_entry() {
    let root = root();
    let mut codes = BTreeSet::new();
    for folder in ["core/src", "proxy/src", "module/src"] {
        for file in files_below(&root.join(folder), ".rs") {
            let is_test = |path: &Path| path.to_string_lossy().contains("test");
            if !is_test(file.strip_prefix(&root).expect("below it")) {
                codes.extend(error_codes(&read(&file)));
            }
        }
    }
    // Words that open other texts: commands in examples.
    let is_command = |word: &String| redfence_core::keyspace::table::find(word.as_bytes()).is_some();
    codes.retain(|word| !is_command(word));
    assert!(codes.contains("UNAVAILABLE") && codes.contains("DEADLOCK"), "{codes:?}");
    let page = doc("errors.md");
    let known: BTreeSet<String> = first_column(&page, "");
    let missing: Vec<&String> = codes.difference(&known).collect();
    assert!(missing.is_empty(), "docs/errors.md has no row for {missing:?}");
    let unknown: Vec<&String> = known.difference(&codes).collect();
    assert!(unknown.is_empty(), "docs/errors.md has rows for codes nobody answers: {unknown:?}");
}

/// What each of the five example users may do: the same table that `proxy/tests/acl_matrix.rs` tries on running nodes.
#[test]
fn the_table_of_rights_is_that_of_the_program() {
    check_generated("users.md", &redfence::acl::matrix::table()).unwrap_or_else(|why| panic!("{why}"));
    let page = doc("users.md");
    for (name, rules) in redfence::acl::matrix::USERS {
        let rules = rules.replace("on nopass ", "").replace("on nopass", "on");
        assert!(
            page.contains(&format!("`{name}` (`{rules}`)")),
            "docs/users.md does not show the rules of {name}: {rules}"
        );
    }
    for (category, _) in
        redfence_core::keyspace::acl_table::CATEGORIES.iter().filter(|(_, bit)| *bit >= 1 << 21)
    {
        assert!(
            code_words(&page).contains(&format!("@{category}")),
            "docs/users.md does not name @{category}"
        );
    }
}
