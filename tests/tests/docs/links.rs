//! Every relative link and anchor of README and docs leads somewhere, and the book lists every page.

use super::pages::{anchors, doc, files_below, read, root, targets};
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
    let mut pages = files_below(&root.join("docs"), ".md");
    let others = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "tests/README.md"];
    pages.extend(
        others.iter().chain(&["tests/interop/README.md", "lua/README.md"]).map(|page| root.join(page)),
    );
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
