//! Every relative link and anchor of README and docs leads somewhere, and the book lists every page.

use super::pages::{all_pages, anchors, code_words, doc, files_below, read, root, targets};
use std::path::{Component, Path, PathBuf};

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                normal.pop();
            }
            Component::CurDir => {}
            Component::Normal(_) | Component::RootDir | Component::Prefix(_) => normal.push(part),
        }
    }
    normal
}

fn check(page: &Path, target: &str) -> Result<(), String> {
    let is_elsewhere = ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme));
    if is_elsewhere {
        return Ok(());
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let folder = page.parent().expect("a file has a folder");
    let path = if file.is_empty() { page.to_path_buf() } else { normal(&folder.join(file)) };
    if !path.exists() {
        return Err("no such file".into());
    }
    let book = root().join("docs");
    if page.starts_with(&book) && !path.starts_with(&book) {
        return Err("leads out of the book; name the file in `code` instead".into());
    }
    if !anchor.is_empty() && !anchors(&read(&path)).iter().any(|known| known == anchor) {
        return Err("no such heading".into());
    }
    Ok(())
}

#[test]
fn every_link_leads_somewhere() {
    let root = root();
    let mut pages = all_pages();
    pages.push(root.join("CHANGELOG.md"));
    let mut broken = Vec::new();
    for page in &pages {
        for target in targets(&read(page)) {
            if let Err(why) = check(page, &target) {
                let page = page.strip_prefix(&root).unwrap_or(page).display();
                broken.push(format!("{page}: ({target}): {why}"));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

#[test]
fn the_book_lists_every_page_once() {
    let book = root().join("docs");
    let summary = targets(&doc("SUMMARY.md"));
    for page in files_below(&book, ".md") {
        let name = page.strip_prefix(&book).expect("below it").to_string_lossy().into_owned();
        let listed = summary.iter().filter(|target| **target == name).count();
        let expected = usize::from(name != "SUMMARY.md");
        assert_eq!(listed, expected, "docs/{name} in docs/SUMMARY.md");
    }
}

#[test]
fn the_readme_is_short() {
    let lines = read(&root().join("README.md")).lines().count();
    assert!(lines < 150, "README.md has {lines} lines; move details into docs/");
}

/// Whether a word in `code` is the name of a file or folder of this repository.
fn is_file_name(word: &str) -> bool {
    let folders = [
        "core/", "proxy/", "module/", "lua/", "tests/", "bench/", "docs/", "scripts/", "docker/", "certs/",
        "clients/", "src/",
    ];
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    is_plain && (folders.iter().any(|folder| word.starts_with(folder)) || word.ends_with(".rs"))
}

#[test]
fn every_file_that_the_docs_name_exists() {
    let root = root();
    let sources: Vec<PathBuf> = ["core", "proxy", "module", "tests", "bench", "certs", "clients"]
        .iter()
        .flat_map(|folder| files_below(&root.join(folder), ".rs"))
        .collect();
    // The page of a crate names files from the crate's own folder on; a bare name is a file of any folder.
    let exists = |page: &Path, word: &str| {
        root.join(word).exists()
            || page.with_file_name(word).exists()
            || sources.iter().any(|path| path.ends_with(word))
    };
    // Decisions tell of their day; the example of a new command is none of ours.
    let is_history = |page: &Path| page.parent().is_some_and(|folder| folder.ends_with("adr"));
    let mut missing = Vec::new();
    for page in all_pages().iter().filter(|page| !is_history(page)) {
        for word in code_words(&read(page)).iter().filter(|word| is_file_name(word)) {
            if !exists(page, word) && !word.contains("example") {
                missing.push(format!("{}: {word}", page.strip_prefix(&root).unwrap_or(page).display()));
            }
        }
    }
    assert!(missing.is_empty(), "files that do not exist:\n{}", missing.join("\n"));
}

/// Renames must not leave the traces behind.
#[test]
fn every_function_that_the_traces_name_exists() {
    let root = root();
    let sources: String = ["core", "proxy", "module"]
        .iter()
        .flat_map(|folder| files_below(&root.join(folder), ".rs"))
        .map(|path| read(&path))
        .collect();
    let mut missing = Vec::new();
    for page in ["trace-acquire.md", "trace-set-nx.md"] {
        for word in code_words(&doc(&format!("internals/{page}"))) {
            let is_name =
                word.contains('_') && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            if is_name && !sources.contains(&format!("fn {word}")) {
                missing.push(format!("docs/internals/{page}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "functions that do not exist:\n{}", missing.join("\n"));
}

/// The files that a row of a table names, and all files of the folders it names. A bare file name is beside one named before it.
fn files_of_row(row: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = Vec::new();
    for word in code_list(row) {
        let path = root().join(&word);
        if word.contains('/') && path.is_dir() {
            files.extend(files_below(&path, ".rs"));
        } else if word.contains('/') && path.is_file() {
            files.push(path);
        } else if word.ends_with(".rs") {
            let beside = files.iter().map(|file| file.with_file_name(&word)).find(|path| path.is_file());
            files.extend(beside);
        }
    }
    files
}

/// The words in `code` of a line, in their order.
fn code_list(line: &str) -> Vec<String> {
    let codes = line.split('`').skip(1).step_by(2);
    codes.flat_map(|code| code.split([' ', ','])).map(str::to_owned).collect()
}

#[test]
fn a_row_of_a_trace_names_the_file_of_each_function() {
    let mut missing = Vec::new();
    let mut found = 0;
    for page in ["trace-acquire.md", "trace-set-nx.md"] {
        for row in doc(&format!("internals/{page}")).lines().filter(|line| line.starts_with('|')) {
            let sources: String = files_of_row(row).iter().map(|file| read(file)).collect();
            for word in code_list(row) {
                let is_name =
                    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                if !is_name {
                    continue;
                }
                let is_there = ["(", "<"].iter().any(|next| sources.contains(&format!("fn {word}{next}")));
                found += usize::from(is_there);
                if !is_there {
                    missing.push(format!("docs/internals/{page}: {word} in: {row}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "functions that are not in a file their row names:\n{}", missing.join("\n"));
    assert!(found > 30, "only {found} functions were found in the traces");
}
