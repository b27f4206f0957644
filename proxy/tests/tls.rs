//! TLS for clients: every listener, client certificates, certificates replaced while it runs, and what costs one connection alone.

mod support;

use redfence_certs::{Authority, Usage};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;
use support::tls::{client_config, http_get, server_pair, Certificates, TlsClient};
use support::{await_that, free_address, redfence, Client, Node, PATIENCE};
use tempfile::TempDir;

fn start(certificates: &Certificates, more: &[&str]) -> Node {
    let flags = certificates.flags(more);
    Node::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
}

/// One number of `INFO`.
fn info(client: &mut TlsClient, field: &str) -> u64 {
    let text = client.ask(&["INFO", "everything"]);
    let value = text.split("\\r\\n").find_map(|line| line.strip_prefix(&format!("{field}:")));
    value.unwrap_or_else(|| panic!("no {field} in {text}")).parse().unwrap()
}

#[test]
fn every_listener_speaks_tls_and_the_plain_one_does_not() {
    let certificates = Certificates::new();
    let [plain, correctness, redlock, admin]: [SocketAddr; 4] = std::array::from_fn(|_| free_address());
    let texts = [plain, correctness, redlock, admin].map(|address| address.to_string());
    let node = start(
        &certificates,
        &[
            "--plain-listen",
            &texts[0],
            "--correctness-listen",
            &texts[1],
            "--redlock-listen",
            &texts[2],
            "--admin",
            &texts[3],
        ],
    );
    let mut client = certificates.connect(node.address);
    assert!(client.ask(&["LOCK.ACQUIRE", "a", "60000", "OWNER", "me"]).starts_with('('));
    assert_eq!(certificates.connect(correctness).ask(&["LOCK.ACQUIRE", "a", "60000"]), "nil");
    assert_eq!(certificates.connect(redlock).ask(&["PING"]), "PONG");
    assert_eq!(Client::connect(plain).ask(&["LOCK.ACQUIRE", "a", "60000"]), "nil");
    let mut probe = certificates.connect(admin);
    assert_eq!(http_get(&mut probe.stream, "/health").unwrap(), "alive\n");
    await_that("the metrics show the lock", || {
        let mut probe = certificates.connect(admin);
        http_get(&mut probe.stream, "/metrics").unwrap().contains("redfence_locks_held{mode=\"exclusive\"} 1")
    });
}

#[test]
fn redis_cli_connects() {
    if Command::new("redis-cli").arg("--version").output().is_err() {
        println!("skipped: no redis-cli");
        return;
    }
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let port = node.address.port().to_string();
    let output = Command::new("redis-cli")
        .args(["--tls", "--cacert", &certificates.file("ca.crt"), "-p", &port, "LOCK.ACQUIRE", "cli", "1000"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().count(), 2, "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_client_certificate_is_verified_and_may_be_required() {
    let certificates = Certificates::new();
    let stranger = Authority::new("stranger").unwrap();
    let own = certificates.authority.issue("app", &[], Usage::Client).unwrap();
    let foreign = stranger.issue("app", &[], Usage::Client).unwrap();
    let for_servers = server_pair(&certificates.authority);
    let ca = certificates.file("ca.crt");
    for (when, without) in [("required", false), ("optional", true)] {
        let node = start(&certificates, &["--tls-client-ca", &ca, "--tls-client-auth", when]);
        let is_served = |pair| {
            let config = client_config(&certificates.authority, pair);
            let asked =
                TlsClient::connect(node.address, &config).and_then(|mut client| client.try_ask(&["PING"]));
            asked.is_ok_and(|reply| reply == "PONG")
        };
        assert!(is_served(Some(&own)), "{when}");
        assert_eq!(is_served(None), without, "{when}");
        assert!(!is_served(Some(&foreign)), "{when}: of another authority");
        assert!(!is_served(Some(&for_servers)), "{when}: not a client certificate");
        assert!(is_served(Some(&own)), "{when}: after all that");
    }
}

#[test]
fn the_name_of_a_client_certificate_is_its_user() {
    let certificates = Certificates::new();
    let users = certificates.path().join("users.acl");
    let text = "user default off\nuser app on >pw ~app:* &* +@all -@admin\nuser off off ~* +@all\n";
    std::fs::write(&users, text).unwrap();
    let (ca, users) = (certificates.file("ca.crt"), users.to_string_lossy().into_owned());
    let flags = ["--tls-client-ca", &ca, "--tls-client-auth", "optional", "--acl-file", &users];
    let node = start(&certificates, &flags);
    let connect = |name: &str| {
        let pair = certificates.authority.issue(name, &[], Usage::Client).unwrap();
        TlsClient::connect(node.address, &client_config(&certificates.authority, Some(&pair))).unwrap()
    };
    let mut app = connect("app");
    assert_eq!(app.ask(&["ACL", "WHOAMI"]), "\"app\"", "without a password");
    assert!(app.ask(&["LOCK.ACQUIRE", "app:1", "60000"]).starts_with('('));
    assert!(app.ask(&["LOCK.ACQUIRE", "other", "60000"]).starts_with("-NOPERM"));
    assert!(app.ask(&["LOCK.FORCERELEASE", "app:1"]).starts_with("-NOPERM"));
    for name in ["nosuch", "off", "default", "APP", "app\u{0}x", "app "] {
        let reply = connect(name).ask(&["PING"]);
        assert!(reply.starts_with("-NOAUTH"), "{name:?} is nobody's name: {reply}");
    }
    // A stranger's certificate of the same name gets no further than the handshake, and without one a password is needed.
    let stranger = Authority::new("stranger").unwrap().issue("app", &[], Usage::Client).unwrap();
    let config = client_config(&certificates.authority, Some(&stranger));
    let asked = TlsClient::connect(node.address, &config).and_then(|mut client| client.try_ask(&["PING"]));
    assert!(!asked.is_ok_and(|reply| reply == "PONG"));
    let mut without = certificates.connect(node.address);
    assert!(without.ask(&["PING"]).starts_with("-NOAUTH"));
    assert_eq!(without.ask(&["AUTH", "app", "pw"]), "OK");
    // Deleted: the certificate is nobody's from then on.
    std::fs::write(certificates.path().join("users.acl"), "user default off\n").unwrap();
    await_that("its connection is closed", || !app.try_ask(&["PING"]).is_ok_and(|reply| reply == "PONG"));
    assert!(connect("app").ask(&["PING"]).starts_with("-NOAUTH"));
}

#[test]
fn certificates_are_replaced_under_load_and_a_bad_pair_leaves_the_old_one() {
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut kept: Vec<TlsClient> = (0..4).map(|_| certificates.connect(node.address)).collect();
    let load = {
        let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for client in &mut kept {
                    assert_eq!(client.ask(&["PING"]), "PONG");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    let next = Authority::new("next").unwrap();
    let with_next = client_config(&next, None);
    let is_served = |config| TlsClient::connect(node.address, config).is_ok();
    assert!(!is_served(&with_next));
    certificates.write_server(&next);
    await_that("the new certificate is in use", || is_served(&with_next));

    // A key that belongs to another certificate, an empty file, and none at all.
    let other = server_pair(&next);
    std::fs::write(certificates.file("server.key"), &other.key).unwrap();
    let complaints = || node.process.log().matches("the old ones stay").count();
    await_that("the bad pair is told", || complaints() == 1);
    std::fs::write(certificates.file("server.crt"), "").unwrap();
    await_that("the empty file is told", || complaints() == 2);
    std::fs::remove_file(certificates.file("server.crt")).unwrap();
    await_that("the missing file is told", || complaints() == 3);
    assert!(is_served(&with_next));
    assert!(!node.process.log().contains("BEGIN"), "no key in the log");

    // SIGHUP reads them at once, and a good pair is taken again.
    certificates.write_server(&certificates.authority);
    node.process.signal("HUP");
    let with_first = client_config(&certificates.authority, None);
    await_that("the good pair is in use", || is_served(&with_first));
    let before = asked.load(Ordering::Relaxed);
    await_that("the connections from before are served", || asked.load(Ordering::Relaxed) > before + 8);
    stop.store(true, Ordering::Relaxed);
    load.join().expect("no connection was dropped");
}

#[test]
fn nonsense_costs_its_own_connection_alone() {
    let certificates = Certificates::new();
    let plain = free_address();
    let node = start(&certificates, &["--plain-listen", &plain.to_string()]);
    let mut honest = certificates.connect(node.address);
    assert_eq!(honest.ask(&["PING"]), "PONG");

    // Plain bytes on the TLS port: closed, with an alert at most and no Redis reply.
    let mut bytes = Client::connect(node.address);
    bytes.send_bytes(b"*1\r\n$4\r\nPING\r\n");
    let mut answer = Vec::new();
    let _ = bytes.stream.read_to_end(&mut answer);
    assert!(!answer.windows(4).any(|word| word == b"PONG") && answer.first() != Some(&b'-'), "{answer:?}");
    // TLS on the plain port.
    assert!(TlsClient::connect(plain, &client_config(&certificates.authority, None)).is_err());
    // Handshakes that end early, at every length of a first record.
    let hello = first_flight(&certificates);
    for end in [0, 1, 4, 5, 6, 40, hello.len() - 1, hello.len()] {
        let mut stream = TcpStream::connect(node.address).unwrap();
        stream.write_all(&hello[..end]).unwrap();
    }
    // One bit wrong in each of its bytes.
    for at in 0..hello.len().min(120) {
        let mut bad = hello.clone();
        bad[at] ^= 0x40;
        let mut stream = TcpStream::connect(node.address).unwrap();
        // The other side may have closed before it has all.
        let _ = stream.write_all(&bad);
    }
    // On a busy machine some are not even accepted yet.
    await_that("they are counted", || info(&mut honest, "tls_handshakes_failed") > 20);
    await_that("all of them are forgotten", || info(&mut honest, "connected_clients") == 1);
    assert_eq!(Client::connect(plain).ask(&["PING"]), "PONG");
    assert_eq!(certificates.connect(node.address).ask(&["PING"]), "PONG");
}

/// The bytes a client begins with.
fn first_flight(certificates: &Certificates) -> Vec<u8> {
    let config = client_config(&certificates.authority, None);
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    let mut hello = Vec::new();
    tls.write_tls(&mut hello).unwrap();
    hello
}

/// CPU time of the threads with this name, in ticks of the kernel.
fn cpu_ticks(node: &Node, name: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.process.child.id())).unwrap();
    let ticks = tasks.filter_map(|task| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (before, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let is_named = before.split_once('(')?.1 == name;
        is_named.then(|| fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap())
    });
    ticks.sum()
}

#[test]
fn handshakes_of_strangers_cost_the_threads_of_the_clients_little() {
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let mut honest = certificates.connect(node.address);
    let hello = first_flight(&certificates);
    let before = cpu_ticks(&node, "clients");
    await_that("handshakes have cost some time", || {
        for _ in 0..200 {
            let mut stream = TcpStream::connect(node.address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(&hello).unwrap();
            stream.read_exact(&mut [0; 5]).expect("the node goes on with the handshake");
        }
        cpu_ticks(&node, "tls-accept") >= 20
    });
    let (of_clients, of_handshakes) = (cpu_ticks(&node, "clients") - before, cpu_ticks(&node, "tls-accept"));
    assert!(2 * of_handshakes > of_clients, "{of_handshakes} and {of_clients} ticks");
    assert_eq!(honest.ask(&["PING"]), "PONG");
    await_that("all of them are forgotten", || info(&mut honest, "connected_clients") == 1);
}

#[test]
fn what_comes_with_the_end_of_a_handshake_is_answered_though_the_client_has_closed() {
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let config = client_config(&certificates.authority, None);
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    tls.write_tls(&mut stream).unwrap();
    while tls.is_handshaking() {
        tls.read_tls(&mut stream).unwrap();
        tls.process_new_packets().unwrap();
    }
    // The end of the handshake, a command and a goodbye, in one write.
    tls.writer().write_all(&support::command(&[b"SET", b"k", b"v"])).unwrap();
    tls.send_close_notify();
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).unwrap();
    }
    stream.write_all(&bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reader = certificates.connect(node.address);
    await_that("the command was run", || reader.ask(&["GET", "k"]) == "\"v\"");
}

#[test]
fn a_silent_newcomer_counts_as_a_client_and_makes_room_for_others() {
    let certificates = Certificates::new();
    let node = start(&certificates, &["--max-clients", "3"]);
    let mut honest = certificates.connect(node.address);
    let silent: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(node.address).unwrap()).collect();
    await_that("they are counted", || info(&mut honest, "connected_clients") == 3);
    let config = client_config(&certificates.authority, None);
    let connect = || TlsClient::connect(node.address, &config);
    // With an answer it is known that the node, too, has finished the handshake.
    let shaken = |_| {
        let mut other = connect().expect("the oldest silent one makes room");
        assert_eq!(other.ask(&["PING"]), "PONG");
        other
    };
    let others: Vec<_> = (0..2).map(shaken).collect();
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    }
    assert!(connect().is_err(), "there is no room: all have shaken hands, and need no login");
    drop(others);
    await_that("there is room again", || connect().is_ok());
}

#[test]
fn a_waiter_that_says_goodbye_in_tls_is_not_granted() {
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let mut holder = certificates.connect(node.address);
    let fence = support::fence_of(&holder.ask(&["LOCK.ACQUIRE", "a", "600000"])).to_string();
    for _ in 0..3 {
        let mut waiter = certificates.connect(node.address);
        waiter.send(&["LOCK.ACQUIRE", "a", "600000", "WAIT", "600000"]).unwrap();
        await_that("it waits", || info(&mut holder, "waiters") == 1);
        waiter.close();
        await_that("it has left the queue", || info(&mut holder, "waiters") == 0);
    }
    let mut waiter = certificates.connect(node.address);
    waiter.send(&["LOCK.ACQUIRE", "a", "600000", "WAIT", "600000"]).unwrap();
    await_that("it waits", || info(&mut holder, "waiters") == 1);
    assert!(holder.ask(&["LOCK.RELEASE", "a", &fence]).contains("ok"));
    assert!(waiter.receive().unwrap().starts_with('('), "who stayed is granted");
}

#[test]
fn large_replies_arrive_whole_and_in_order_at_a_slow_reader() {
    let certificates = Certificates::new();
    let node = start(&certificates, &[]);
    let mut client = certificates.connect(node.address);
    let value = |digit: usize| digit.to_string().repeat(60_000);
    for digit in 0..4 {
        assert_eq!(client.ask(&["SET", &format!("k{digit}"), &value(digit)]), "OK");
    }
    for turn in 0..100 {
        client.send(&["GET", &format!("k{}", turn % 4)]).unwrap();
    }
    client.send(&["QUIT"]).unwrap();
    // Nothing is read for a while, so that the buffers between the two fill.
    std::thread::sleep(Duration::from_millis(300));
    for turn in 0..100 {
        assert!(client.receive().unwrap() == format!("\"{}\"", value(turn % 4)), "reply {turn}");
    }
    assert_eq!(client.receive().unwrap(), "OK");
    // An end without close_notify would be an error here.
    assert_eq!(client.receive().unwrap(), "(closed)");
}

#[test]
fn silent_connections_do_not_delay_the_health_of_a_node() {
    let certificates = Certificates::new();
    for with_tls in [false, true] {
        let admin = free_address();
        let text = admin.to_string();
        let node = if with_tls {
            start(&certificates, &["--admin", &text])
        } else {
            Node::start(&["--admin", &text])
        };
        let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(admin).unwrap()).collect();
        let answer = if with_tls {
            http_get(&mut certificates.connect(admin).stream, "/health")
        } else {
            let mut stream = TcpStream::connect(admin).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            http_get(&mut stream, "/health")
        };
        assert_eq!(answer.unwrap(), "alive\n");
        // It did not have to wait until the silent ones were given up.
        let mut last = silent.last().unwrap();
        last.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let read = last.read(&mut [0]);
        assert!(matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "{read:?}");
        // Far more than there is room for: the oldest end.
        let more: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(admin).unwrap()).collect();
        let mut stream = TcpStream::connect(admin).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        if !with_tls {
            assert_eq!(http_get(&mut stream, "/health").unwrap(), "alive\n");
        }
        drop((silent, more, node));
    }
}

#[test]
fn bad_files_are_refused_at_the_start_in_one_line() {
    let certificates = Certificates::new();
    let other = server_pair(&certificates.authority);
    other.write(certificates.path(), "other").unwrap();
    std::fs::write(certificates.file("empty"), "").unwrap();
    let file = |name: &str| certificates.file(name);
    for (flags, part) in [
        (["--tls-cert", &file("server.crt"), "--tls-key", &file("other.key"), "", ""], "does not belong to"),
        (["--tls-cert", &file("missing"), "--tls-key", &file("server.key"), "", ""], "tls-cert"),
        (["--tls-cert", &file("empty"), "--tls-key", &file("server.key"), "", ""], "no certificate in it"),
        (
            ["--tls-cert", &file("server.crt"), "--tls-key", &file("server.crt"), "", ""],
            "no private key in it",
        ),
        (
            [
                "--tls-cert",
                &file("server.crt"),
                "--tls-key",
                &file("server.key"),
                "--tls-client-ca",
                &file("empty"),
            ],
            "tls-client-ca",
        ),
    ] {
        let folder = TempDir::new().unwrap();
        let flags: Vec<&str> = flags.into_iter().filter(|flag| !flag.is_empty()).collect();
        let address = free_address().to_string();
        let mut command = redfence(&folder, &["--listen", &address]);
        let output = command.args(&flags).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("redfence: ")).collect();
        assert!(!output.status.success() && lines.len() == 1 && lines[0].contains(part), "{flags:?}: {text}");
    }
}

/// A Redis that speaks TLS alone and wants a certificate.
fn tls_redis(certificates: &Certificates, folder: &TempDir) -> Option<(SocketAddr, support::Process)> {
    let address = free_address();
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        "0",
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--tls-port",
        &address.port().to_string(),
    ]);
    for (name, file) in [
        ("--tls-cert-file", "server.crt"),
        ("--tls-key-file", "server.key"),
        ("--tls-ca-cert-file", "ca.crt"),
    ] {
        command.args([name, &certificates.file(file)]);
    }
    command.arg("--dir").arg(folder.path());
    let mut process = support::Process::start(command, folder, "redis");
    loop {
        if process.log().contains("Ready to accept connections") {
            return Some((address, process));
        }
        if process.child.try_wait().unwrap().is_some() {
            println!("skipped: this redis-server has no TLS: {}", process.log());
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_upstream_redis_is_reached_through_tls() {
    let certificates = Certificates::new();
    certificates
        .authority
        .issue("proxy", &[], Usage::Client)
        .unwrap()
        .write(certificates.path(), "client")
        .unwrap();
    let stranger = Authority::new("stranger").unwrap();
    stranger.pair().write(certificates.path(), "stranger").unwrap();
    let folder = TempDir::new().unwrap();
    let Some((redis, _process)) = tls_redis(&certificates, &folder) else { return };
    let url = format!("rediss://{redis}");
    let file = |name: &str| certificates.file(name);
    let (ca, cert, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
    let node = Node::start(&[
        "--redis",
        &url,
        "--redis-tls-ca",
        &ca,
        "--redis-tls-cert",
        &cert,
        "--redis-tls-key",
        &key,
    ]);
    let mut client = node.connect();
    await_that("it is reached", || client.ask(&["SET", "plain", "1"]) == "OK");
    assert_eq!(client.ask(&["GET", "plain"]), "\"1\"");
    assert!(client.acquire(&["fast", "60000", "TIER", "EFFICIENCY"]) > 0);
    // A large value in pieces, a blocked command and a message: every kind of connection.
    let large = "x".repeat(3_000_000);
    assert_eq!(client.ask(&["SET", "large", &large]), "OK");
    assert_eq!(client.ask(&["STRLEN", "large"]), "3000000");
    assert!(client.ask(&["GET", "large"]) == format!("\"{large}\""));
    let mut blocked = node.connect();
    blocked.send(&["BLPOP", "list", "0"]);
    let mut listener = node.connect();
    assert!(listener.ask(&["SUBSCRIBE", "news"]).contains("subscribe"));
    assert_eq!(client.ask(&["RPUSH", "list", "item"]), "1");
    assert_eq!(blocked.receive(), "(\"list\", \"item\")");
    assert_eq!(client.ask(&["PUBLISH", "news", "hello"]), "1");
    assert!(listener.receive().contains("hello"));

    // Whom it does not trust it does not talk to, and without a certificate it is not let in.
    for flags in [
        &["--redis-tls-ca", &file("stranger.crt"), "--redis-tls-cert", &cert, "--redis-tls-key", &key][..],
        &["--redis-tls-ca", &ca],
    ] {
        let mut all = vec!["--redis", url.as_str()];
        all.extend_from_slice(flags);
        let node = Node::start(&all);
        let reply = node.connect().ask(&["SET", "plain", "2"]);
        assert!(reply.starts_with("-UNAVAILABLE"), "{flags:?}: {reply}");
    }
    assert_eq!(client.ask(&["GET", "plain"]), "\"1\"");
}
