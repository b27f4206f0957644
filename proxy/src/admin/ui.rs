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
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// All of them; a test compares the list with the folder.
const FILES: &[File] = files! {
    "api.js" => JS,
    "app.js" => JS,
    "audit.js" => JS,
    "chain.js" => JS,
    "chart.js" => JS,
    "cluster.js" => JS,
    "contention.js" => JS,
    "dialog.js" => JS,
    "dom.js" => JS,
    "events.js" => JS,
    "format.js" => JS,
    "icon.svg" => SVG,
    "index.html" => HTML,
    "lock.js" => JS,
    "locks.js" => JS,
    "login.js" => JS,
    "overview.js" => JS,
    "parts.js" => JS,
    "place.js" => JS,
    "poll.js" => JS,
    "routes.js" => JS,
    "sessions.js" => JS,
    "style.css" => CSS,
    "table.js" => JS,
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
