//! Core's `Reply` as the value a client of either protocol would have read from the wire.

use redfence_core::reply::{Reply, Sink};

use crate::resp::{Protocol, Value};

/// Renders by way of [`Reply::render`], so what is tested is what every front gets.
pub fn rendered(reply: &Reply, protocol: Protocol) -> Value {
    let mut builder = Builder { protocol, open: Vec::new(), done: None };
    reply.render(&mut builder);
    builder.done.expect("a reply is one value")
}

enum Kind {
    Array,
    Map,
    Set,
}

/// Puts the flat stream of nodes back into a tree.
struct Builder {
    protocol: Protocol,
    open: Vec<(Kind, usize, Vec<Value>)>,
    done: Option<Value>,
}

impl Builder {
    fn put(&mut self, value: Value) {
        let Some((_, missing, items)) = self.open.last_mut() else {
            assert!(self.done.replace(value).is_none(), "a second value behind the reply");
            return;
        };
        items.push(value);
        *missing -= 1;
        self.close_full();
    }

    fn open(&mut self, kind: Kind, count: usize) {
        self.open.push((kind, count, Vec::new()));
        self.close_full();
    }

    fn close_full(&mut self) {
        if self.open.last().is_some_and(|(_, missing, _)| *missing == 0) {
            let (kind, _, items) = self.open.pop().expect("just seen");
            let value = match (kind, self.protocol) {
                (Kind::Map, Protocol::Resp3) => {
                    Value::Map(items.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())
                }
                (Kind::Set, Protocol::Resp3) => Value::Set(items),
                (Kind::Array, _) | (Kind::Map | Kind::Set, Protocol::Resp2) => Value::Array(items),
            };
            self.put(value);
        }
    }
}

impl Sink for Builder {
    fn nil(&mut self) {
        self.put(self.protocol.nil());
    }

    fn nil_array(&mut self) {
        let nil = match self.protocol {
            Protocol::Resp2 => Value::NullArray,
            Protocol::Resp3 => Value::Null,
        };
        self.put(nil);
    }

    fn int(&mut self, value: i64) {
        self.put(Value::Integer(value));
    }

    fn double(&mut self, value: f64) {
        let text = value.to_string();
        self.put(match self.protocol {
            Protocol::Resp2 => Value::bulk(text),
            Protocol::Resp3 => Value::Double(text),
        });
    }

    fn boolean(&mut self, value: bool) {
        self.put(match self.protocol {
            Protocol::Resp2 => Value::Integer(value.into()),
            Protocol::Resp3 => Value::Boolean(value),
        });
    }

    fn bulk(&mut self, value: &[u8]) {
        self.put(Value::bulk(value));
    }

    fn status(&mut self, value: &str) {
        self.put(Value::Simple(value.as_bytes().to_vec()));
    }

    fn error(&mut self, line: &str) {
        self.put(Value::Error(line.to_owned()));
    }

    fn verbatim(&mut self, value: &[u8]) {
        self.put(match self.protocol {
            Protocol::Resp2 => Value::bulk(value),
            Protocol::Resp3 => Value::Verbatim([b"txt:", value].concat()),
        });
    }

    fn array(&mut self, len: usize) {
        self.open(Kind::Array, len);
    }

    fn map(&mut self, pairs: usize) {
        self.open(Kind::Map, 2 * pairs);
    }

    fn set(&mut self, len: usize) {
        self.open(Kind::Set, len);
    }
}
