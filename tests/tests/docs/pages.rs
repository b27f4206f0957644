//! Reads Markdown pages: which there are, their links, headings and generated parts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const END: &str = "<!-- /generated -->";
const BEGIN: &str = "<!-- generated";

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_path_buf()
}

pub(crate) fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn doc(name: &str) -> String {
    read(&root().join("docs").join(name))
}

/// All files below a folder whose name ends so, sorted.
pub(crate) fn files_below(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Every page of the repository that describes it as it is: the book, and the READMEs and other pages beside the sources.
pub(crate) fn all_pages() -> Vec<PathBuf> {
    let root = root();
    let mut pages = files_below(&root.join("docs"), ".md");
    let beside = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "lua/README.md",
        "module/README.md",
    ];
    pages.extend(beside.map(|page| root.join(page)));
    pages.extend(
        ["tests/README.md", "tests/interop/README.md", "clients/TESTSERVER.md"].map(|page| root.join(page)),
    );
    pages
}

/// The text without fenced blocks; inline code is blanked where `code` is false.
pub(crate) fn prose(text: &str, code: bool) -> String {
    let mut fenced = false;
    let mut prose = String::with_capacity(text.len());
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let parts = line.split('`').enumerate();
            let shown = parts.map(|(at, part)| if at % 2 == 0 || code { part } else { "" });
            prose.push_str(&shown.collect::<Vec<_>>().join("`"));
        }
        prose.push('\n');
    }
    prose
}

/// Where links and pictures of a page point to.
pub(crate) fn targets(text: &str) -> Vec<String> {
    let text = prose(text, false);
    let mut found = Vec::new();
    for (opening, closing) in [("](", ')'), ("src=\"", '"'), ("srcset=\"", '"'), ("href=\"", '"')] {
        for rest in text.split(opening).skip(1) {
            found.extend(rest.split_once(closing).map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// Every word in `code` of a page.
pub(crate) fn code_words(page: &str) -> BTreeSet<String> {
    let prose = prose(page, true);
    let codes = prose.split('`').skip(1).step_by(2);
    codes.flat_map(|code| code.split([' ', ','])).map(str::to_owned).collect()
}

/// The anchors that mdBook and GitHub give to the headings of a page.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for line in prose(text, true).lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|ch| ch.is_alphanumeric() || matches!(ch, ' ' | '-' | '_'));
        let slug: String = kept.map(|ch| if ch == ' ' { '-' } else { ch }).collect();
        let same = anchors.iter().filter(|anchor| **anchor == slug).count();
        anchors.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    anchors
}

/// Compares the generated part of a page with what it should be, or writes it where `UPDATE_DOCS` is set.
pub(crate) fn check_generated(page: &str, expected: &str) -> Result<(), String> {
    let path = root().join("docs").join(page);
    let text = fs::read_to_string(&path).map_err(|error| format!("docs/{page}: {error}"))?;
    let begin = text.find(BEGIN).ok_or_else(|| format!("docs/{page} has no '{BEGIN} … -->'"))?;
    let start = begin + text[begin..].find('\n').ok_or_else(|| format!("docs/{page} ends too soon"))? + 1;
    let end = text.find(END).ok_or_else(|| format!("docs/{page} has no '{END}'"))?;
    if text[start..end].trim() == expected.trim() {
        return Ok(());
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let updated = format!("{}{}\n{}", &text[..start], expected.trim(), &text[end..]);
        fs::write(&path, updated).map_err(|error| format!("docs/{page}: {error}"))?;
        return Ok(());
    }
    Err(format!(
        "docs/{page} differs from the program; UPDATE_DOCS=1 cargo test -p redfence-tests --test docs rewrites it to:\n{expected}"
    ))
}
