//! What `clients/TESTSERVER.md` promises, over a socket.

use redfence_testserver::{Fault, Options, Partition, TestServer};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

struct Client(BufReader<TcpStream>);

impl Client {
    fn new(server: &TestServer) -> Client {
        let stream = TcpStream::connect(server.address()).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket");
        Client(BufReader::new(stream))
    }

    fn send(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(bytes.as_bytes()).expect("it reads");
    }

    /// One reply as text: elements parted by spaces, nil as `nil`. Empty where the server closed the connection.
    fn receive(&mut self) -> String {
        let mut line = String::new();
        if self.0.read_line(&mut line).unwrap_or(0) == 0 {
            return String::new();
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "*" | ">" | "~" => self.receive_many(rest.parse().unwrap()),
            "%" => self.receive_many(rest.parse::<usize>().unwrap() * 2),
            "$" if rest == "-1" => "nil".into(),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                String::from_utf8(bytes[..bytes.len() - 2].to_vec()).unwrap()
            }
            "_" => "nil".into(),
            _ => rest.into(),
        }
    }

    fn receive_many(&mut self, count: usize) -> String {
        (0..count).map(|_| self.receive()).collect::<Vec<_>>().join(" ")
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.receive()
    }
}

fn fence(reply: &str) -> u64 {
    reply.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("a grant, not {reply}"))
}

#[test]
fn a_lease_ends_when_the_test_says_so() {
    let server = TestServer::start().unwrap();
    let mut client = Client::new(&server);
    let granted = fence(&client.ask("LOCK.ACQUIRE wallet:7 30000 OWNER alice"));
    assert_eq!(client.ask("LOCK.ACQUIRE wallet:7 30000 OWNER bob"), "nil");
    assert_eq!(client.ask("TEST.ADVANCE 30000"), "30000");
    assert_eq!(client.ask("LOCK.ACQUIRE wallet:7 30000 OWNER bob"), "nil");
    assert_eq!(client.ask("TEST.ADVANCE 1"), "30001");
    assert_eq!(client.ask(&format!("LOCK.RELEASE wallet:7 {granted}")), "0 expired");
    assert!(fence(&client.ask("LOCK.ACQUIRE wallet:7 30000 OWNER bob")) > granted);
}

#[test]
fn waiters_are_served_on_the_way_and_told_before_the_advance_is_answered() {
    let server = TestServer::start().unwrap();
    let (mut first, mut second, mut third) =
        (Client::new(&server), Client::new(&server), Client::new(&server));
    let one = fence(&first.ask("LOCK.ACQUIRE a 1000 OWNER one"));
    second.send("LOCK.ACQUIRE a 1000 WAIT 5000 OWNER two");
    while server.stats().waiters < 1 {
        std::thread::yield_now();
    }
    third.send("LOCK.ACQUIRE a 1000 WAIT 1500 OWNER three");
    while server.stats().waiters < 2 {
        std::thread::yield_now();
    }
    // One ends at 1001 and two has it; three's wait runs out at 1501, before two's lease does.
    first.ask("TEST.ADVANCE 1900");
    assert!(fence(&second.receive()) > one);
    assert_eq!(third.receive(), "nil");
}

#[test]
fn faults_happen_to_the_next_commands_in_their_order() {
    let server = TestServer::start().unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.ask("TEST.FAIL UNAVAILABLE"), "OK");
    assert_eq!(client.ask("TEST.FAIL INDETERMINATE"), "OK");
    assert_eq!(client.ask("TEST.FAIL LOSTREPLY"), "OK");
    assert!(client.ask("LOCK.ACQUIRE a 1000 OWNER x").starts_with("UNAVAILABLE "));
    assert_eq!(server.stats().locks, 0);
    assert!(client.ask("LOCK.ACQUIRE a 1000 OWNER x").starts_with("INDETERMINATE "));
    assert_eq!(server.stats().locks, 1);
    assert_eq!(client.ask("LOCK.ACQUIRE b 1000 OWNER x"), "");
    assert_eq!(server.stats().locks, 2);
    assert_eq!(server.calls("lock.acquire"), 2);
}

#[test]
fn a_partition_refuses_or_says_nothing_and_control_goes_on() {
    let server = TestServer::start().unwrap();
    let (mut client, mut control) = (Client::new(&server), Client::new(&server));
    assert_eq!(control.ask("TEST.PARTITION ON"), "OK");
    assert!(client.ask("LOCK.ACQUIRE a 1000").starts_with("UNAVAILABLE "));
    assert_eq!(client.ask("PING"), "PONG");
    assert_eq!(control.ask("TEST.PARTITION SILENT"), "OK");
    client.send("LOCK.ACQUIRE a 1000 OWNER lost");
    client.send("PING");
    assert_eq!(client.ask("TEST.TIME"), "0");
    assert_eq!(control.ask("TEST.PARTITION OFF"), "OK");
    assert_eq!(client.ask("PING"), "PONG");
    assert_eq!(server.stats().locks, 0);
}

#[test]
fn a_lost_lock_goes_to_the_next_waiter() {
    let server = TestServer::start().unwrap();
    let (mut holder, mut waiter) = (Client::new(&server), Client::new(&server));
    let lost = fence(&holder.ask("LOCK.ACQUIRE a 1000 OWNER one"));
    waiter.send("LOCK.ACQUIRE a 1000 WAIT 5000 OWNER two");
    while server.stats().waiters < 1 {
        std::thread::yield_now();
    }
    assert!(server.lose("a"));
    assert!(fence(&waiter.receive()) > lost);
    assert_eq!(holder.ask(&format!("LOCK.RENEW a {lost} 1000")), "0 expired");
    assert_eq!(holder.ask("TEST.LOSE nobody-has-it"), "0");
}

#[test]
fn a_session_ends_after_the_grace_time_of_this_clock() {
    let server = TestServer::start().unwrap();
    let (mut opener, mut control) = (Client::new(&server), Client::new(&server));
    let session = opener.ask("LOCK.SESSION OPEN 20000 NAME worker");
    fence(&opener.ask(&format!("LOCK.ACQUIRE a 0 SESSION {session}")));
    assert_eq!(control.ask("TEST.DISCONNECT"), "1");
    control.ask("TEST.ADVANCE 499");
    assert_eq!(server.stats().locks, 1);
    control.ask("TEST.ADVANCE 2");
    assert_eq!(server.stats().locks, 0);
}

#[test]
fn being_blocked_keeps_a_session_alive_over_a_long_advance() {
    let server = TestServer::start().unwrap();
    let (mut holder, mut waiter) = (Client::new(&server), Client::new(&server));
    fence(&holder.ask("LOCK.ACQUIRE a 60000 OWNER one"));
    let session = waiter.ask("LOCK.SESSION OPEN 1000");
    waiter.send(&format!("LOCK.ACQUIRE a 60000 WAIT 120000 OWNER two SESSION {session}"));
    while server.stats().waiters < 1 {
        std::thread::yield_now();
    }
    server.advance(Duration::from_millis(60_001));
    fence(&waiter.receive());
}

#[test]
fn a_reset_forgets_all_and_fences_go_on_rising() {
    let server = TestServer::start().unwrap();
    let mut client = Client::new(&server);
    let mut last = 0;
    for _ in 0..3 {
        for _ in 0..5 {
            let next = fence(&client.ask("LOCK.ACQUIRE a 1000"));
            assert!(next > last);
            last = next;
            assert_eq!(client.ask(&format!("LOCK.RELEASE a {next}")), "1 ok");
        }
        assert_eq!(client.ask("TEST.RESET"), "OK");
    }
    assert_eq!(server.stats().commands, 0);
}

#[test]
fn subscribers_hear_events_in_both_protocols() {
    let server = TestServer::start().unwrap();
    let (mut two, mut three, mut holder) = (Client::new(&server), Client::new(&server), Client::new(&server));
    assert_eq!(two.ask("SUBSCRIBE __lock__:a"), "subscribe __lock__:a 1");
    assert!(three.ask("HELLO 3").contains("proto 3"));
    assert_eq!(three.ask("PSUBSCRIBE __lock__:*"), "psubscribe __lock__:* 1");
    fence(&holder.ask("LOCK.ACQUIRE a 1000 OWNER one"));
    assert!(two.receive().contains("\"event\":\"acquired\""));
    assert!(three.receive().starts_with("pmessage __lock__:* __lock__:a {\"event\":\"acquired\""));
}

/// A RESP3 client that is told of the locks it loses.
fn notified(server: &TestServer) -> Client {
    let mut client = Client::new(server);
    assert!(client.ask("HELLO 3").contains("proto 3"));
    assert_eq!(client.ask("LOCK.NOTIFY ON"), "OK");
    client
}

#[test]
fn a_lost_lock_is_pushed_to_its_holder_with_cause_and_successor() {
    let server = TestServer::start().unwrap();
    let (mut holder, mut waiter, mut watcher) = (notified(&server), notified(&server), Client::new(&server));
    watcher.ask("SUBSCRIBE __lost__:a");
    let one = fence(&holder.ask("LOCK.ACQUIRE a 1000 VALUE v"));
    waiter.send("LOCK.ACQUIRE a 1000 WAIT 5000");
    while server.stats().waiters < 1 {
        std::thread::yield_now();
    }
    server.advance(Duration::from_millis(1001));
    let two = fence(&waiter.receive());
    assert_eq!(holder.receive(), format!("lock-lost a {one} expired {two}"));
    assert!(watcher
        .receive()
        .contains(&format!("\"fence\":{one},\"cause\":\"expired\",\"successor\":{two}")));
    assert!(server.lose("a"));
    assert_eq!(waiter.receive(), format!("lock-lost a {two} forced nil"));
    // Neither a release nor the loss of a grant that was not told is told.
    let three = fence(&holder.ask("LOCK.ACQUIRE a 1000"));
    assert_eq!(holder.ask(&format!("LOCK.RELEASE a {three}")), "1 ok");
    server.fail(Fault::Indeterminate, 1);
    assert!(holder.ask("LOCK.ACQUIRE a 1000").starts_with("INDETERMINATE "));
    assert!(server.lose("a"));
    fence(&holder.ask("LOCK.ACQUIRE b 1000"));
    assert_eq!(holder.ask("LOCK.NOTIFY OFF"), "OK");
    assert!(server.lose("b"));
    assert_eq!(holder.ask("PING"), "PONG");
}

#[test]
fn a_client_that_names_a_session_is_told_what_it_holds_and_loses() {
    let server = TestServer::start().unwrap();
    let (mut opener, mut listener) = (Client::new(&server), notified(&server));
    let session = opener.ask("LOCK.SESSION OPEN 20000");
    let a = fence(&opener.ask(&format!("LOCK.ACQUIRE a 0 SESSION {session}")));
    assert_eq!(listener.ask(&format!("LOCK.NOTIFY ON SESSION {session}")), format!("a {a}"));
    assert!(listener.ask("LOCK.NOTIFY ON SESSION 1f").starts_with("NOSESSION "));
    assert_eq!(opener.ask(&format!("LOCK.SESSION CLOSE {session}")), "1");
    assert_eq!(listener.receive(), format!("lock-lost a {a} session_ended nil"));
}

#[test]
fn a_node_without_quorum_tells_of_doubt_and_of_losses_when_it_is_back() {
    let server = TestServer::start().unwrap();
    let (mut short, mut long) = (notified(&server), notified(&server));
    let a = fence(&short.ask("LOCK.ACQUIRE a 1000"));
    fence(&long.ask("LOCK.ACQUIRE b 60000"));
    server.partition(Partition::NoQuorum);
    server.advance(Duration::from_millis(5000));
    assert_eq!(short.receive(), format!("lock-suspect a {a} no_quorum nil"));
    assert_eq!(short.ask("LOCK.NOTIFY ON"), "OK", "the node answers it alone, and tells nothing twice");
    server.partition(Partition::Off);
    assert_eq!(short.receive(), format!("lock-lost a {a} expired nil"));
    assert_eq!(long.ask("PING"), "PONG");
    let c = fence(&short.ask("LOCK.ACQUIRE c 1000"));
    server.partition(Partition::Silent);
    server.advance(Duration::from_millis(5000));
    server.partition(Partition::Off);
    assert_eq!(short.receive(), format!("lock-lost c {c} expired nil"));
}

#[test]
fn sessions_have_policies() {
    let server = TestServer::start().unwrap();
    let (mut old, mut young) = (notified(&server), notified(&server));
    let open = "LOCK.SESSION OPEN 1000 POLICY wound-wait";
    let (first, second) = (old.ask(open), young.ask(open));
    let lost = fence(&young.ask(&format!("LOCK.ACQUIRE a 60000 SESSION {second}")));
    let taken = fence(&old.ask(&format!("LOCK.ACQUIRE a 60000 WAIT 5000 SESSION {first}")));
    assert_eq!(young.receive(), format!("lock-lost a {lost} wounded {taken}"));
    young.send(&format!("LOCK.ACQUIRE a 60000 WAIT 5000 SESSION {second}"));
    while server.stats().waiters < 1 {
        std::thread::yield_now();
    }
    // Being blocked on the connection that opened it keeps a session with a policy alive too.
    server.advance(Duration::from_millis(1500));
    assert_eq!(old.receive(), format!("lock-lost a {taken} session_ended {}", fence(&young.receive())));
    let dies = old.ask("LOCK.SESSION OPEN 1000 POLICY wait-die");
    assert!(old.ask(&format!("LOCK.ACQUIRE a 60000 WAIT 5000 SESSION {dies}")).starts_with("DEADLOCK "));
}

#[test]
fn plain_keys_and_fences_work() {
    let server = TestServer::start().unwrap();
    let mut client = Client::new(&server);
    assert_eq!(client.ask("SET k v NX PX 1000"), "OK");
    assert_eq!(client.ask("LOCK.ACQUIRE k 1000"), "nil");
    assert_eq!(client.ask("FENCE.CHECK acc 43"), "1");
    assert!(client.ask("FENCE.CALL acc 42 SET balance 1").starts_with("STALE "));
    assert_eq!(client.ask("FENCE.CALL acc 43 SET balance 1"), "OK");
    assert_eq!(client.ask("GET balance"), "1");
    assert!(client.ask("EVAL x 0").starts_with("ERR "));
    assert!(client.ask("NO.SUCH command").starts_with("ERR unknown command"));
    assert!(client.ask("TEST.NOTHING").starts_with("ERR expected TEST."));
}

#[test]
fn a_clock_in_real_time_runs_by_itself() {
    let server = TestServer::with_options(Options { real_time: true, ..Options::default() }).unwrap();
    let mut client = Client::new(&server);
    fence(&client.ask("LOCK.ACQUIRE a 20 OWNER one"));
    let began = Instant::now();
    fence(&client.ask("LOCK.ACQUIRE a 20 WAIT 9000 OWNER two"));
    assert!(began.elapsed() < Duration::from_secs(9));
}

#[test]
fn only_loopback_is_listened_on() {
    let listen = "0.0.0.0:0".parse().unwrap();
    assert!(TestServer::with_options(Options { listen, real_time: false }).is_err());
}
