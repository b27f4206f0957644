//! The dashboard's own files, built into the program: it needs nothing from outside, and works without a network.

use super::http::{self, Answer};
use hyper::StatusCode;

/// One file of the folder `ui`.
struct File {
    name: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

macro_rules! files {
    ($($name:literal => $content_type:expr),* $(,)?) => {
        &[$(File { name: $name, content_type: $content_type, bytes: include_bytes!(concat!("ui/", $name)) }),*]
    };
}

const HTML: &str = "text/html; charset=utf-8";

/// All of them; a test compares the list with the folder.
const FILES: &[File] = files! {
    "index.html" => HTML,
};

/// The page of every path that is neither a file nor part of the API: its own script reads the path.
pub(super) fn index() -> Answer {
    file("index.html")
}

/// A file by its name, as in `/ui/style.css`.
pub(super) fn file(name: &str) -> Answer {
    match FILES.iter().find(|file| file.name == name) {
        Some(file) => http::whole(StatusCode::OK, file.content_type, file.bytes.into(), "no-cache"),
        None => http::text(StatusCode::NOT_FOUND, "no such file\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_folder_is_served() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/admin/ui");
        let entries = std::fs::read_dir(folder).unwrap();
        let there: BTreeSet<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        let listed: BTreeSet<String> = FILES.iter().map(|file| file.name.to_owned()).collect();
        assert_eq!(there, listed);
    }
}
