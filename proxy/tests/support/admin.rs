//! A program that asks the admin listener of a node.

use super::tls::http_get;
use super::{await_that, free_address, Node, PATIENCE};
use serde_json::{json, Value};
use socket2::{Domain, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// One answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.into_iter().find(|(have, _)| have.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub fn code(&self) -> (u16, String) {
        (self.status, self.json()["error"]["code"].as_str().unwrap_or_default().to_owned())
    }
}

/// A program that asks the admin listener of a node.
pub struct Asker {
    pub admin: SocketAddr,
    pub cookie: Option<String>,
}

impl Asker {
    pub fn send(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Whoever sends too much may be cut off behind the answer.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let cookie = self.cookie.as_ref().map_or(String::new(), |cookie| format!("Cookie: {cookie}\r\n"));
        let host = match headers.contains("Host:") {
            true => String::new(),
            false => format!("Host: {}\r\n", self.admin),
        };
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\n{host}{cookie}{headers}Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, "Content-Type: application/json\r\n", &body.to_string())
    }

    pub fn log_in(&mut self, user: &str, password: &str) -> Answer {
        let answer = self.post("/api/v1/login", &json!({ "user": user, "password": password }));
        if let Some(cookie) = answer.header("set-cookie") {
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        answer
    }
}

pub fn start(flags: &[&str]) -> (Node, Asker) {
    let admin = free_address();
    let text = admin.to_string();
    let mut all = vec!["--admin", &text];
    all.extend_from_slice(flags);
    let node = Node::start(&all);
    let asker = Asker { admin, cookie: None };
    await_that("it serves", || {
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        http_get(&mut stream, "/ready").is_ok_and(|text| text == "ready\n")
    });
    (node, asker)
}

/// Opens a stream of live events, and reads its head.
pub fn listen(asker: &Asker, path: &str) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(asker.admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let cookie = asker.cookie.as_ref().map_or(String::new(), |cookie| format!("Cookie: {cookie}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n{cookie}\r\n", asker.admin).unwrap();
    let mut reader = BufReader::new(stream);
    let head = next_line(&mut reader, "retry: ");
    assert!(!head.is_empty());
    reader
}

/// Reads up to a line that begins so, and gives the rest of it.
#[track_caller]
pub fn next_line(reader: &mut BufReader<TcpStream>, start: &str) -> String {
    loop {
        let mut line = String::new();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream has ended");
        if let Some(rest) = line.trim_end().strip_prefix(start) {
            return rest.to_owned();
        }
    }
}

/// A connection that has sent a request and reads nothing of its answer. Its receive buffer is small: the node's bytes stay with the node.
pub fn stalled(asker: &Asker, path: &str) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4 << 10).unwrap();
    socket.connect(&asker.admin.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let cookie = asker.cookie.as_ref().map_or(String::new(), |cookie| format!("Cookie: {cookie}\r\n"));
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {}\r\n{cookie}\r\n", asker.admin).unwrap();
    stream
}
