//! A reply as one line of text, through the same `Sink` a front would use.

use redfence_core::reply::{Reply, Sink};

pub(crate) fn reply(reply: &Reply) -> String {
    let mut text = Text::default();
    reply.render(&mut text);
    assert!(text.open.is_empty(), "a reply promised more than it gave: {reply:?}");
    text.line
}

pub(crate) fn bytes(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.len() > 80 {
        format!("{}…({} bytes)", &text[..20], text.len())
    } else {
        text.into_owned()
    }
}

/// What is open: how many nodes are to come, and whether they are pairs.
struct Open {
    left: usize,
    all: usize,
    pairs: bool,
}

#[derive(Default)]
struct Text {
    line: String,
    open: Vec<Open>,
}

impl Text {
    fn node(&mut self, text: &str) {
        self.separate();
        self.line.push_str(text);
        self.close();
    }

    fn separate(&mut self) {
        if let Some(open) = self.open.last() {
            let at = open.all - open.left;
            if at > 0 {
                self.line.push_str(if open.pairs && at % 2 == 1 { ": " } else { ", " });
            }
        }
    }

    fn enter(&mut self, len: usize, pairs: bool) {
        self.separate();
        self.line.push(if pairs { '{' } else { '[' });
        self.open.push(Open { left: len, all: len, pairs });
        if len == 0 {
            self.leave();
        }
    }

    fn close(&mut self) {
        if let Some(open) = self.open.last_mut() {
            open.left -= 1;
            if open.left == 0 {
                self.leave();
            }
        }
    }

    fn leave(&mut self) {
        if let Some(open) = self.open.pop() {
            self.line.push(if open.pairs { '}' } else { ']' });
            self.close();
        }
    }
}

impl Sink for Text {
    fn nil(&mut self) {
        self.node("nil");
    }

    fn nil_array(&mut self) {
        self.node("nil array");
    }

    fn int(&mut self, value: i64) {
        self.node(&value.to_string());
    }

    fn double(&mut self, value: f64) {
        self.node(&format!("{value:?}"));
    }

    fn boolean(&mut self, value: bool) {
        self.node(&value.to_string());
    }

    fn bulk(&mut self, value: &[u8]) {
        self.node(&bytes(value));
    }

    fn status(&mut self, value: &str) {
        self.node(&format!("+{value}"));
    }

    fn error(&mut self, line: &str) {
        self.node(&format!("-{line}"));
    }

    fn verbatim(&mut self, value: &[u8]) {
        self.node(&bytes(value));
    }

    fn array(&mut self, len: usize) {
        self.enter(len, false);
    }

    fn map(&mut self, pairs: usize) {
        self.enter(pairs * 2, true);
    }

    fn set(&mut self, len: usize) {
        self.enter(len, false);
    }
}
