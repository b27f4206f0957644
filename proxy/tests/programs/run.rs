//! `redfence run`: the command, its fence, its signals and its end.

use super::support::{await_that, free_address, start_cluster, Client, Node};
use super::{address, fails, output, program, succeeds, Background};
use std::path::Path;
use tempfile::TempDir;

fn holder_of(client: &mut Client, name: &str) -> String {
    client.ask(&["LOCK.INFO", name])
}

fn is_free(client: &mut Client, name: &str) -> bool {
    holder_of(client, name).contains("\"free\"")
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// A run whose command writes its process id to a file and then goes on for long.
fn long_run(addresses: &str, folder: &TempDir, options: &[&str], script: &str) -> (Background, String) {
    let pid = folder.path().join("pid");
    // No `$(seq 600)`: a signal to the group would end that, and so the loop.
    let work = "i=0; while [ $i -lt 600 ]; do sleep 0.1; i=$((i+1)); done";
    let script = format!("{script}; echo $$ > {}; {work}", pid.display());
    let words = [&["run", "job"], options, &["--", "sh", "-c", &script]].concat();
    let run = Background::start(program(addresses, &words));
    await_that("the command runs", || !text_of(&pid).is_empty());
    (run, text_of(&pid))
}

fn is_alive(pid: &str) -> bool {
    // A process that nobody has waited for yet is dead all the same.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn the_command_has_the_fence_and_its_exit_code_is_handed_on() {
    let node = Node::start(&[]);
    let (at, mut client) = (address(&node), node.connect());
    let said = succeeds(&at, &["run", "job", "--", "sh", "-c", "echo $REDFENCE_FENCE $REDFENCE_RESOURCE"]);
    let fence: u64 = said.trim().strip_suffix(" job").and_then(|fence| fence.parse().ok()).expect("a fence");
    assert!(
        client.acquire(&["job", "600000", "OWNER", "me"]) > fence,
        "it was released, and this is the next grant"
    );
    client.ask(&["LOCK.FORCERELEASE", "job"]);
    let code = |script: &str| output(&at, &["run", "job", "--", "sh", "-c", script]).status.code();
    assert_eq!(code("exit 7"), Some(7));
    assert_eq!(code("kill -KILL $$"), Some(128 + 9));
    let umask = std::process::Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout;
    assert_eq!(output(&at, &["run", "job", "--", "sh", "-c", "umask"]).stdout, umask, "that of its user");
    assert!(is_free(&mut client, "job"));
}

#[test]
fn each_reason_not_to_run_has_its_exit_code() {
    let node = Node::start(&[]);
    let (at, mut client) = (address(&node), node.connect());
    client.acquire(&["job", "600000", "OWNER", "alice"]);
    let (code, line) = fails(&at, &["run", "job", "--", "touch", "never"]);
    assert_eq!(code, 75, "{line}");
    assert!(line.contains("job is held by alice"), "{line}");
    assert_eq!(fails(&at, &["run", "job", "--wait", "100ms", "--", "true"]).0, 75);
    assert_eq!(fails(&at, &["run", "other", "--", "/no/such/program"]).0, 127);
    assert_eq!(fails(&at, &["run", "other", "--", "/etc/passwd"]).0, 126);
    assert!(is_free(&mut client, "other"), "it is given back where the command cannot be run");
    assert_eq!(fails(&at, &["run", &"x".repeat(513), "--", "true"]).0, 2, "a name that is refused");
    assert_eq!(fails(&free_address().to_string(), &["run", "job", "--", "true"]).0, 69);
    assert_eq!(output(&at, &["run", "job"]).status.code(), Some(2), "no command");
}

#[test]
fn the_lock_is_waited_for() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    let fence = client.acquire(&["job", "600000", "OWNER", "alice"]).to_string();
    let mut run = Background::start(program(&address(&node), &["run", "job", "--wait", "1m", "--", "true"]));
    await_that("it is in line", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    client.ask(&["LOCK.RELEASE", "job", &fence]);
    assert_eq!(run.await_exit().0, Some(0));

    client.acquire(&["job", "600000", "OWNER", "bob"]);
    let mut run = Background::start(program(&address(&node), &["run", "job", "--wait", "1m", "--", "true"]));
    await_that("it is in line again", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    run.signal("TERM");
    assert_eq!(run.await_exit().0, Some(128 + 15), "a signal ends the wait");
    await_that("it left the queue", || client.ask(&["LOCK.QUEUE", "job"]) == "()");
}

#[test]
fn a_node_that_stands_still_is_not_waited_for() {
    let nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let mut client = nodes[1].connect();
    let fence = client.acquire(&["job", "600000", "OWNER", "alice"]).to_string();
    let words = ["run", "job", "--wait", "10m", "--", "sh", "-c", "echo done"];
    let mut run = Background::start(program(&addresses.join(","), &words));
    await_that("it is in line at the first node", || client.ask(&["LOCK.QUEUE", "job"]) != "()");
    nodes[0].process.signal("STOP");
    await_that("the others have a leader", || client.ask(&["LOCK.RELEASE", "job", &fence]).starts_with("("));
    assert_eq!(run.await_exit().0, Some(0), "another node has told it of its grant");
}

#[test]
fn signals_are_forwarded_to_the_command() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let heard = folder.path().join("heard");
    let script = format!("trap 'echo x > {}' USR1", heard.display());
    let (mut run, _) = long_run(&address(&node), &folder, &[], &script);
    run.signal("USR1");
    await_that("the command has heard it", || heard.exists());
    run.signal("TERM");
    assert_eq!(run.await_exit().0, Some(128 + 15));
    assert!(is_free(&mut node.connect(), "job"), "and the lock is released");
}

/// A process in the background of the command that writes its process id, and is deaf to SIGTERM.
fn deaf_worker(folder: &TempDir, with: &str) -> (std::path::PathBuf, String) {
    let pid = folder.path().join("worker");
    let script = format!(
        "trap \"\" TERM HUP INT; echo $$ > {}; for i in $(seq 600); do sleep 0.1; done",
        pid.display()
    );
    (pid, format!("{with} sh -c '{script}' &"))
}

#[test]
fn the_command_and_whatever_it_has_started_die_with_a_killed_run() {
    let node = Node::start(&[]);
    // A session of its own, and another user: the kernel's own signal at the death of the parent reaches neither.
    let other_user = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let may_change = std::process::Command::new("sh").args(["-c", &format!("{other_user} true")]).output();
    let may_change = may_change.is_ok_and(|output| output.status.success());
    for with in ["", "setsid", other_user] {
        if with == other_user && !may_change {
            continue;
        }
        let folder = TempDir::new().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let (worker, script) = deaf_worker(&folder, with);
        let (run, pid) = long_run(&address(&node), &folder, &[], &format!("{script} :"));
        await_that("the worker runs", || !text_of(&worker).is_empty());
        run.signal("KILL");
        let worker = text_of(&worker);
        await_that("nobody works without a lock", || !is_alive(&pid) && !is_alive(&worker));
        node.connect().ask(&["LOCK.FORCERELEASE", "job"]);
    }
}

#[test]
fn what_the_command_leaves_behind_is_ended_before_the_lock_is_released() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    for program_name in ["run", "elect"] {
        let folder = TempDir::new().unwrap();
        let (worker, script) = deaf_worker(&folder, "");
        let done = folder.path().join("done");
        let script = format!(
            "{script} while ! test -s {}; do sleep 0.05; done; echo x > {}; exit 7",
            worker.display(),
            done.display()
        );
        let words = [program_name, "job", "--kill-after", "1s", "--", "sh", "-c", &script];
        let mut run = Background::start(program(&address(&node), &words));
        await_that("the command has ended", || done.exists());
        let pid = text_of(&worker);
        // Asked in this order: whoever lives after the lock was free has worked without it.
        await_that("the lock is released", || {
            let is_free = is_free(&mut client, "job");
            assert!(!(is_free && is_alive(&pid)), "{program_name}: somebody works without the lock");
            is_free
        });
        assert_eq!(run.await_exit().0, Some(7), "the exit code is the command's");
    }
    // The shell ends at SIGTERM, its worker does not.
    let folder = TempDir::new().unwrap();
    let (worker, script) = deaf_worker(&folder, "");
    let (mut run, _) = long_run(&address(&node), &folder, &["--kill-after", "1s"], &format!("{script} :"));
    await_that("the worker runs", || !text_of(&worker).is_empty());
    run.signal("TERM");
    let pid = text_of(&worker);
    await_that("the lock is released", || {
        let is_free = is_free(&mut client, "job");
        assert!(!(is_free && is_alive(&pid)), "somebody works without the lock");
        is_free
    });
    assert_eq!(run.await_exit().0, Some(128 + 15));
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let pid = folder.path().join("pid");
    let script = format!(
        "trap '' HUP; exec \"$0\" run job -- sh -c 'echo $$ > {}; for i in $(seq 600); do sleep 0.1; done'",
        pid.display()
    );
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_redfence")]).env("REDFENCE_ADDR", address(&node));
    let mut run = Background::start(command);
    await_that("the command runs", || !text_of(&pid).is_empty());
    let pid = text_of(&pid);
    for pid in [pid, run.0.id().to_string()] {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
        assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1, 1, "by the command, too: {ignored}");
    }
    run.signal("HUP");
    run.signal("TERM");
    assert_eq!(run.await_exit().0, Some(128 + 15), "SIGHUP did not end it");
}

#[test]
fn a_command_that_asks_at_the_terminal_is_not_stopped_there() {
    let node = Node::start(&[]);
    // `script` runs it on a terminal of its own.
    let run =
        format!("{} run job -- sh -c 'read -r line < /dev/tty; echo ended'", env!("CARGO_BIN_EXE_redfence"));
    let mut command = std::process::Command::new("script");
    command
        .args(["-qec", &run, "/dev/null"])
        .env("REDFENCE_ADDR", address(&node))
        .stdin(std::process::Stdio::null());
    let Ok(output) = command.output() else { return };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("ended"), "{said}");
}

#[test]
fn the_lock_is_released_at_another_node_where_its_own_stands_still() {
    let nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let folder = TempDir::new().unwrap();
    let go = folder.path().join("go");
    let started = folder.path().join("started");
    let script =
        format!("echo x > {}; while ! test -e {}; do sleep 0.05; done", started.display(), go.display());
    let words = ["run", "job", "--ttl", "1h", "--", "sh", "-c", &script];
    let mut run = Background::start(program(&addresses.join(","), &words));
    await_that("the command runs", || started.exists());
    nodes[0].process.signal("STOP");
    let mut client = nodes[1].connect();
    await_that("the others have a leader", || client.ask(&["LOCK.INFO", "job"]).contains("\"held\""));
    std::fs::write(&go, "").unwrap();
    assert_eq!(run.await_exit().0, Some(0));
    await_that("the lock is free", || is_free(&mut client, "job"));
    // A node that stands still accepts connections by its kernel: it costs seconds, not half a minute.
    let begun = std::time::Instant::now();
    succeeds(&addresses.join(","), &["locks"]);
    assert!(begun.elapsed() < std::time::Duration::from_secs(25), "{:?}", begun.elapsed());
}

/// Milliseconds left of the lock.
fn ttl_of(info: &str) -> u64 {
    let ttl = info.split("\"ttl\", ").nth(1).and_then(|rest| rest.split(',').next());
    ttl.and_then(|ttl| ttl.parse().ok()).unwrap_or(0)
}

/// Waits until more is left than before: somebody has renewed it.
fn await_renewal(client: &mut Client) {
    let mut last = ttl_of(&holder_of(client, "job"));
    await_that("the lock is renewed", || {
        let before = std::mem::replace(&mut last, ttl_of(&holder_of(client, "job")));
        last > before
    });
}

#[test]
fn the_lock_is_renewed_as_long_as_the_command_runs() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let (mut run, pid) = long_run(&address(&node), &folder, &["--ttl", "4s", "--kill-after", "100ms"], ":");
    let mut client = node.connect();
    let fence_of = |info: &str| info.split("\"fence\", ").nth(1).map(|rest| rest[..16].to_owned());
    let before = fence_of(&holder_of(&mut client, "job"));
    for _ in 0..4 {
        await_renewal(&mut client);
    }
    assert_eq!(fence_of(&holder_of(&mut client, "job")), before, "under the same fence");
    assert!(is_alive(&pid));
    run.signal("TERM");
    run.await_exit();
}

#[test]
fn the_group_is_ended_when_the_lock_is_taken_away() {
    let node = Node::start(&[]);
    let mut client = node.connect();
    await_that("the cluster has version 2: the loss is told at once", || {
        client.ask(&["LOCK.NOTIFY", "ON"]) == "OK"
    });
    let folder = TempDir::new().unwrap();
    let grandchild = folder.path().join("grandchild");
    // Deaf to SIGTERM, as is what it starts: only SIGKILL to the group ends both.
    let script = format!(
        "trap '' TERM; sh -c 'echo $$ > {}; for i in $(seq 600); do sleep 0.1; done' &",
        grandchild.display()
    );
    let script = format!("{script} :");
    let (mut run, pid) =
        long_run(&address(&node), &folder, &["--ttl", "1h", "--kill-after", "200ms"], &script);
    await_that("its own child runs", || !text_of(&grandchild).is_empty());
    assert_eq!(client.ask(&["LOCK.FORCERELEASE", "job"]), "1");
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    assert!(line.contains("is lost, cause: forced"), "{line}");
    let grandchild = text_of(&grandchild);
    await_that("all of the group is dead", || !is_alive(&pid) && !is_alive(&grandchild));
}

#[test]
fn a_run_that_stood_still_past_its_ttl_ends_its_command_when_it_wakes_up() {
    let node = Node::start(&[]);
    let folder = TempDir::new().unwrap();
    let (mut run, pid) = long_run(&address(&node), &folder, &["--ttl", "1s"], ":");
    run.signal("STOP");
    let mut client = node.connect();
    client.acquire(&["job", "600000", "WAIT", "9000", "OWNER", "next"]);
    run.signal("CONT");
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    await_that("the command is dead", || !is_alive(&pid));
    assert!(holder_of(&mut client, "job").contains("\"next\""), "the new holder keeps the lock");
}

#[test]
fn a_command_that_succeeds_after_its_lock_has_ended_is_no_success() {
    // Tier 1 in a Redis without the module: nobody tells of a loss there, and the renewal is far away.
    let (_redis, node) = super::support::behind(&[]);
    let take_away = format!(
        "redis-cli -h {} -p {} LOCK.FORCERELEASE job TIER EFFICIENCY",
        node.address.ip(),
        node.address.port()
    );
    let words = ["run", "job", "--ttl", "1h", "--tier", "efficiency", "--", "sh", "-c", &take_away];
    let (code, line) = fails(&address(&node), &words);
    assert_eq!(code, 76, "{line}");
    assert!(line.contains("ended before the command did"), "{line}");
}

#[test]
fn it_holds_on_while_one_node_is_down_and_ends_the_command_before_the_lock_is_somebody_elses() {
    let mut nodes = start_cluster(3, &[]);
    let addresses: Vec<String> = nodes.iter().map(address).collect();
    let folder = TempDir::new().unwrap();
    let (mut run, pid) =
        long_run(&addresses.join(","), &folder, &["--ttl", "8s", "--kill-after", "100ms"], ":");
    drop(nodes.remove(0));
    let mut client = nodes[0].connect();
    await_that("the others have a leader", || client.ask(&["LOCK.INFO", "job"]).contains("\"held\""));
    await_renewal(&mut client);
    assert!(is_alive(&pid));
    drop(nodes);
    let (code, line) = run.await_exit();
    assert_eq!(code, Some(76), "{line}");
    assert!(line.contains("could not be renewed in time"), "{line}");
    await_that("the command is dead", || !is_alive(&pid));
}
