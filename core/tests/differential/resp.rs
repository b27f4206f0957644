//! RESP on both sides: a blocking client for the real server, and a `Sink` that writes our replies.

use redfence_core::keyspace::numbers::format_g;
use redfence_core::keyspace::Resp;
use redfence_core::reply::{Reply, Sink};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A reply as it stands on the wire, taken apart just far enough to compare.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Frame {
    /// Type byte and line: `+ - : , # _` and null bulks and arrays.
    Line(u8, String),
    Bulk(Vec<u8>),
    Many(u8, Vec<Frame>),
}

pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    _dir: tempdir::Dir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// `None` where there is no redis-server on this machine.
    pub(crate) fn start() -> Option<Server> {
        for _ in 0..5 {
            let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
            let dir = tempdir::Dir::new();
            let process = Command::new("redis-server")
                .args([
                    "--port",
                    &port.to_string(),
                    "--bind",
                    "127.0.0.1",
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                ])
                .args(["--hash-max-listpack-entries", "128", "--zset-max-listpack-entries", "128"])
                .arg("--dir")
                .arg(dir.path())
                .stdout(Stdio::null())
                .spawn()
                .ok()?;
            let server = Server { process, port, _dir: dir };
            let deadline = Instant::now() + Duration::from_secs(10);
            while Instant::now() < deadline {
                if let Ok(mut client) = Client::connect(port) {
                    if client.call(&[b"PING"]) == Frame::Line(b'+', "PONG".into()) {
                        return Some(server);
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        panic!("redis-server did not come up in five tries");
    }
}

pub(crate) struct Client {
    reader: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        Ok(Client { reader: BufReader::new(stream) })
    }

    pub(crate) fn call(&mut self, argv: &[&[u8]]) -> Frame {
        let mut request = format!("*{}\r\n", argv.len()).into_bytes();
        for word in argv {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.reader.get_mut().write_all(&request).expect("the server takes the request");
        read_frame(&mut self.reader)
    }
}

fn read_frame(reader: &mut impl BufRead) -> Frame {
    let mut line = Vec::new();
    reader.read_until(b'\n', &mut line).expect("the server answers");
    let text = String::from_utf8_lossy(&line[1..line.len() - 2]).into_owned();
    let many = |reader: &mut _, count: usize| (0..count).map(|_| read_frame(reader)).collect();
    match line[0] {
        b'$' | b'=' if text != "-1" => {
            let mut bytes = vec![0; text.parse::<usize>().expect("a length") + 2];
            reader.read_exact(&mut bytes).expect("the server answers");
            bytes.truncate(bytes.len() - 2);
            Frame::Bulk(bytes)
        }
        kind @ (b'*' | b'~' | b'>') if text != "-1" => {
            Frame::Many(kind, many(reader, text.parse().expect("a length")))
        }
        b'%' => Frame::Many(b'%', many(reader, text.parse::<usize>().expect("a length") * 2)),
        kind => Frame::Line(kind, text),
    }
}

/// Our reply as the proxy would write it.
pub(crate) fn to_frame(reply: &Reply, resp: Resp) -> Frame {
    let mut wire = Wire { resp, bytes: Vec::new() };
    reply.render(&mut wire);
    read_frame(&mut wire.bytes.as_slice())
}

struct Wire {
    resp: Resp,
    bytes: Vec<u8>,
}

impl Wire {
    fn line(&mut self, kind: char, text: &str) {
        self.bytes.extend_from_slice(format!("{kind}{text}\r\n").as_bytes());
    }

    fn head(&mut self, three: char, len: usize) {
        let kind = if self.resp == Resp::Three { three } else { '*' };
        let len = if three == '%' && kind == '*' { len * 2 } else { len };
        self.line(kind, &len.to_string());
    }
}

impl Sink for Wire {
    fn nil(&mut self) {
        match self.resp {
            Resp::Two => self.line('$', "-1"),
            Resp::Three => self.line('_', ""),
        }
    }
    fn nil_array(&mut self) {
        match self.resp {
            Resp::Two => self.line('*', "-1"),
            Resp::Three => self.line('_', ""),
        }
    }
    fn int(&mut self, value: i64) {
        self.line(':', &value.to_string());
    }
    fn double(&mut self, value: f64) {
        let text = format_g(value, 17);
        match self.resp {
            Resp::Two => self.bulk(text.as_bytes()),
            Resp::Three => self.line(',', &text),
        }
    }
    fn boolean(&mut self, value: bool) {
        match self.resp {
            Resp::Two => self.int(i64::from(value)),
            Resp::Three => self.line('#', if value { "t" } else { "f" }),
        }
    }
    fn bulk(&mut self, value: &[u8]) {
        self.line('$', &value.len().to_string());
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
    }
    fn status(&mut self, value: &str) {
        self.line('+', value);
    }
    fn error(&mut self, line: &str) {
        self.line('-', line);
    }
    fn verbatim(&mut self, value: &[u8]) {
        self.bulk(value);
    }
    fn array(&mut self, len: usize) {
        self.head('*', len);
    }
    fn map(&mut self, pairs: usize) {
        self.head('%', pairs);
    }
    fn set(&mut self, len: usize) {
        self.head('~', len);
    }
}

mod tempdir {
    //! A directory that goes when it is dropped.
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};

    pub(crate) struct Dir(PathBuf);

    impl Dir {
        pub(crate) fn new() -> Dir {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let count = COUNT.fetch_add(1, Ordering::Relaxed);
            let path =
                std::env::temp_dir().join(format!("redfence-differential-{}-{count}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory for the server");
            Dir(path)
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
