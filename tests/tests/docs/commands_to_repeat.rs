//! Every `cargo test … NAME` that a page shows runs a test: its package and target exist, and NAME is part of a test's name.
//! Without this a test that moves to another package leaves a command behind that runs nothing and passes.

use super::pages::{all_pages, files_below, read, root};
use std::path::{Path, PathBuf};

/// One `cargo test` as a page shows it.
#[derive(Debug, Default, PartialEq, Eq)]
struct CargoTest {
    package: Option<String>,
    target: Option<String>,
    /// Only the unit tests of the library.
    is_lib: bool,
    filters: Vec<String>,
}

/// Reads the words behind `cargo test`, up to the end of the command.
fn parse(words: &str) -> CargoTest {
    let mut command = CargoTest::default();
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "#" => break,
            "-p" => command.package = words.next().map(str::to_owned),
            "--test" => command.target = words.next().map(str::to_owned),
            "--features" | "--test-threads" => drop(words.next()),
            "--lib" => command.is_lib = true,
            flag if flag.starts_with('-') => {}
            filter => command.filters.push(filter.to_owned()),
        }
    }
    command
}

/// A command of a page. `-- topic::case` alone is one of the conformance suite.
fn command(code: &str) -> Option<CargoTest> {
    if let Some(filters) = code.strip_prefix("-- ") {
        return Some(parse(&format!("-p redfence-tests --test conformance {filters}")));
    }
    code.split_once("cargo test ").map(|(_, words)| parse(words))
}

/// The commands of a page: in a fenced block one a line, elsewhere what stands between two backquotes.
fn commands(page: &str) -> Vec<CargoTest> {
    let mut is_fenced = false;
    let mut found = Vec::new();
    for line in page.lines().filter(|line| !line.starts_with("<!--")) {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if is_fenced {
            found.extend(command(line));
        } else {
            found.extend(line.split('`').skip(1).step_by(2).filter_map(command));
        }
    }
    found
}

/// The folder of the package, and the sources of the tests that the command runs.
fn sources(command: &CargoTest) -> Result<(PathBuf, Vec<PathBuf>), String> {
    let package = command.package.as_deref().ok_or("names no package (-p)")?;
    let folder = match package {
        "redfence" => "proxy",
        other => other.strip_prefix("redfence-").unwrap_or(other),
    };
    let folder = root().join(folder);
    if !folder.join("Cargo.toml").is_file() {
        return Err(format!("there is no package {package}"));
    }
    let tests = folder.join("tests");
    let mut files = Vec::new();
    if let Some(target) = &command.target {
        files.extend(Some(tests.join(format!("{target}.rs"))).filter(|file| file.is_file()));
        if tests.join(target).is_dir() {
            files.extend(files_below(&tests.join(target), ".rs"));
        }
    } else {
        files.extend(files_below(&folder.join("src"), ".rs"));
        if !command.is_lib && tests.is_dir() {
            files.extend(files_below(&tests, ".rs"));
        }
    }
    if files.is_empty() {
        return Err(format!("{package} has no such test target"));
    }
    Ok((folder, files))
}

/// Whether the last part of the filter is part of the name of a function or module of these sources.
fn is_found(filter: &str, folder: &Path, files: &[PathBuf]) -> bool {
    let last = filter.rsplit("::").next().unwrap_or(filter);
    files.iter().any(|file| {
        let path = file.strip_prefix(folder).expect("a file of the package").to_string_lossy().into_owned();
        path.contains(last) || names_of_functions(&read(file)).any(|name| name.contains(last))
    })
}

fn names_of_functions(source: &str) -> impl Iterator<Item = &str> {
    let definitions = source.lines().filter_map(|line| line.trim_start().split_once("fn "));
    definitions.filter_map(|(_, rest)| rest.split(['(', '<']).next())
}

fn check(command: &CargoTest) -> Result<(), String> {
    let (folder, files) = sources(command)?;
    // The first part of a conformance test's name is a backend, which the suite makes when it runs.
    let is_backend = |filter: &str| {
        let backends = root().join("tests/src/backends");
        filter.ends_with('_') && backends.join(format!("{}.rs", filter.trim_end_matches('_'))).is_file()
    };
    let unknown =
        command.filters.iter().find(|filter| !is_found(filter, &folder, &files) && !is_backend(filter));
    unknown.map_or(Ok(()), |filter| Err(format!("no test there has {filter} in its name")))
}

#[test]
fn every_test_that_a_page_names_exists() {
    let mut wrong = Vec::new();
    let mut filters = 0;
    for page in all_pages() {
        for command in commands(&read(&page)) {
            filters += command.filters.len();
            if let Err(why) = check(&command) {
                wrong.push(format!(
                    "{}: {command:?}: {why}",
                    page.strip_prefix(root()).unwrap_or(&page).display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "commands that run no test:\n{}", wrong.join("\n"));
    assert!(filters > 10, "only {filters} names of tests were found");
}

#[test]
fn a_test_named_in_the_wrong_package_is_found_out() {
    let page = "`cargo test -p redfence a_late_copy_of_a_met_wish`\n```\ncargo test -p redfence-tests --test node a_late_copy_of_a_met_wish # once\n```";
    let verdicts: Vec<bool> = commands(page).iter().map(|command| check(command).is_ok()).collect();
    assert_eq!(verdicts, [false, true]);
}
