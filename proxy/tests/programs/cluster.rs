//! `redfence cluster` and its sub-commands.

use super::support::{await_that, free_address, redfence, start_cluster, Node, Process};
use super::{address, fails, json_lines, output, succeeds};
use tempfile::TempDir;

#[test]
fn members_settings_and_version_are_shown_and_changed() {
    let nodes = start_cluster(3, &[]);
    let at = address(&nodes[0]);
    let text = succeeds(&at, &["cluster"]);
    assert!(text.starts_with("node 1 ("), "{text}");
    assert!(text.contains(": quorum, leader ") && text.contains("cluster version "), "{text}");
    let rows = text.lines().skip_while(|line| !line.starts_with("ID "));
    assert_eq!(rows.filter(|line| line.contains("follower")).count(), 2, "{text}");

    let members = json_lines(&succeeds(&at, &["cluster", "nodes", "--json"]));
    assert_eq!(
        members.iter().map(|node| node["id"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(3)]
    );
    let status = json_lines(&succeeds(&at, &["cluster", "--json"]));
    assert_eq!(status[0]["info"]["quorum"], 1);
    assert_eq!(status[0]["nodes"].as_array().map(Vec::len), Some(3));

    assert_eq!(succeeds(&at, &["cluster", "set", "max-memory", "512mb"]), "OK\n");
    assert_eq!(succeeds(&at, &["cluster", "get", "max-memory"]), "536870912\n");
    let (code, line) = fails(&at, &["cluster", "set", "nonsense", "1"]);
    assert!(code == 1 && line.contains("ERR"), "{line}");

    succeeds(&at, &["cluster", "upgrade", "hold"]);
    await_that("the hold is seen", || succeeds(&at, &["cluster", "version"]).contains("hold:           1"));
    succeeds(&at, &["cluster", "upgrade", "finish"]);

    let leader = |node: &Node| {
        json_lines(&succeeds(&address(node), &["cluster", "info", "--json"]))[0]["leader"].as_u64()
    };
    let next = if leader(&nodes[0]) == Some(2) { 3 } else { 2 };
    succeeds(&at, &["cluster", "transfer", &next.to_string()]);
    await_that("the other node leads", || leader(&nodes[0]) == Some(next));
}

#[test]
fn options_may_stand_behind_the_sub_command() {
    let node = Node::start(&[]);
    let (at, nobody) = (address(&node), free_address().to_string());
    assert_eq!(succeeds(&nobody, &["cluster", "add", "2", &nobody, "--addr", &at]), "OK\n");
    let members = json_lines(&succeeds(&nobody, &["cluster", "--addr", &at, "--json", "nodes"]));
    assert_eq!((members[1]["addr"].as_str(), members[1]["role"].as_str()), (Some(&*nobody), Some("learner")));
    assert_eq!(succeeds(&at, &["cluster", "remove", "2"]), "OK\n");
}

#[test]
fn without_quorum_it_says_so_and_exits_with_1() {
    let mut nodes = start_cluster(3, &[]);
    let last = nodes.remove(0);
    drop(nodes);
    let at = address(&last);
    await_that("it has no quorum", || !output(&at, &["cluster"]).status.success());
    let (code, line) = fails(&at, &["cluster"]);
    assert!(code == 1 && line.contains("has no quorum"), "{line}");
    assert!(succeeds(&at, &["cluster", "info"]).contains("quorum:         0"), "the node answers by itself");
}

#[test]
fn a_node_is_replaced_by_one_command() {
    let nodes = start_cluster(3, &[]);
    let mut client = nodes[0].connect();
    let fence = client.acquire(&["kept", "600000", "OWNER", "me"]);
    let folder = TempDir::new().unwrap();
    let (listen, peer) = (free_address().to_string(), free_address().to_string());
    let flags = ["--id", "4", "--join", "--listen", &listen, "--peer-listen", &peer, "--data", "data"];
    let _joining = Process::start(redfence(&folder, &flags), &folder, "joining");

    // The first address is that of the node that goes.
    let all: Vec<String> = [2, 0, 1].iter().map(|at| address(&nodes[*at])).collect();
    let output = output(&all.join(","), &["cluster", "replace", "3", "4", &peer]);
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{progress}");
    assert!(progress.contains("node 4 is a voter") && progress.contains("removing node 3"), "{progress}");
    let members = json_lines(&succeeds(&address(&nodes[0]), &["cluster", "nodes", "--json"]));
    assert_eq!(
        members.iter().map(|node| node["id"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(2), Some(4)]
    );
    await_that("the new node serves what the old one did", || {
        super::output(&listen, &["locks", "kept"])
            .stdout
            .windows(16)
            .any(|part| part == fence.to_string().as_bytes())
    });
    let (_, line) = fails(&address(&nodes[0]), &["cluster", "replace", "3", "9", &peer]);
    assert!(line.contains("nothing to replace"), "{line}");
}

#[test]
fn a_node_that_lost_its_disk_is_replaced_under_its_own_id() {
    let mut nodes = start_cluster(3, &[]);
    drop(nodes.pop());
    let folder = TempDir::new().unwrap();
    let (listen, peer) = (free_address().to_string(), free_address().to_string());
    let flags = ["--id", "3", "--join", "--listen", &listen, "--peer-listen", &peer, "--data", "data"];
    let _joining = Process::start(redfence(&folder, &flags), &folder, "joining");
    let output = output(&address(&nodes[0]), &["cluster", "replace", "3", "3", &peer]);
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{progress}");
    assert!(progress.find("removing node 3") < progress.find("adding node 3"), "{progress}");
    let members = json_lines(&succeeds(&address(&nodes[0]), &["cluster", "nodes", "--json"]));
    assert_eq!((members[2]["addr"].as_str(), members[2]["role"].as_str()), (Some(&*peer), Some("follower")));
}

#[test]
fn a_replacement_that_never_comes_up_is_given_up_and_the_old_node_stays() {
    let nodes = start_cluster(1, &[]);
    let nobody = free_address().to_string();
    let words = ["cluster", "replace", "1", "2", &nobody, "--stalled-after", "500ms"];
    let (code, line) = fails(&address(&nodes[0]), &words);
    assert!(code == 1 && line.contains("has made no progress"), "{line}");
    let members = json_lines(&succeeds(&address(&nodes[0]), &["cluster", "nodes", "--json"]));
    assert_eq!(members[1]["role"], "learner");
    succeeds(&address(&nodes[0]), &["cluster", "remove", "2"]);
    assert!(nodes[0].connect().acquire(&["still", "1000"]) > 0);
}

#[test]
fn a_replacement_that_is_another_member_already_is_refused() {
    let nodes = start_cluster(3, &[]);
    let at = address(&nodes[1]);
    let nobody = free_address().to_string();
    for old in ["1", "9"] {
        let (code, line) = fails(&at, &["cluster", "replace", old, "3", &nobody]);
        assert!(code == 1 && line.contains("node 3 is a member already"), "{line}");
    }
    let members = json_lines(&succeeds(&at, &["cluster", "nodes", "--json"]));
    assert_eq!(members.len(), 3, "nothing was done: {members:?}");
    // Run again when all is done: it says so once more.
    let third = members[2]["addr"].as_str().unwrap();
    assert_eq!(succeeds(&at, &["cluster", "replace", "9", "3", third]), "OK\n");
}

#[test]
fn a_replacement_under_the_same_id_may_be_run_again_after_the_removal() {
    let mut nodes = start_cluster(3, &[]);
    drop(nodes.pop());
    let at = address(&nodes[0]);
    succeeds(&at, &["cluster", "remove", "3"]);
    let folder = TempDir::new().unwrap();
    let (listen, peer) = (free_address().to_string(), free_address().to_string());
    let flags = ["--id", "3", "--join", "--listen", &listen, "--peer-listen", &peer, "--data", "data"];
    let _joining = Process::start(redfence(&folder, &flags), &folder, "joining");
    assert_eq!(succeeds(&at, &["cluster", "replace", "3", "3", &peer]), "OK\n");
}
