//! `redfence cluster`: the members of a cluster, its settings and its version; `LOCK.CLUSTER` for people and scripts.

mod replace;

use super::access::{AccessArgs, Client};
use super::exit::{self, Failure};
use super::output::{Cell, Output, Style, Table};
use super::reply::Reply;
use clap::{Args, Subcommand};
use replace::ReplaceArgs;
use serde_json::json;

pub const EXAMPLES: &str = "\
Examples:
  redfence cluster                                            members, roles, how far each log is
  redfence cluster --addr 10.0.0.1:6380,10.0.0.2:6380 --json
  redfence cluster replace 2 4 10.0.0.4:7380                  node 4, started with --join, takes the place of node 2
  redfence cluster set max-memory 512mb

Without a sub-command it exits with 1 where the node that answers has no quorum.";

#[derive(Debug, Args)]
pub struct ClusterArgs {
    #[command(subcommand)]
    pub command: Option<ClusterCommand>,

    /// JSON, an object a line
    #[arg(long, global = true)]
    pub json: bool,

    #[command(flatten)]
    pub access: AccessArgs,
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// What the node that answers knows of itself: role, leader, term, commit, applied, quorum
    Info,
    /// The members: address, role, how far its log is, whether it is up
    Nodes,
    /// Adds a node, which was started with --join. It becomes a voter when it has caught up
    Add {
        id: u64,
        /// Its address for other nodes
        // Not `addr`: that is the option of every program.
        #[arg(value_name = "ADDR")]
        peer_addr: String,
    },
    /// Removes a node for good
    Remove { id: u64 },
    /// Moves the leadership to a node
    Transfer { id: u64 },
    /// Adds a node, waits until it is a voter, and removes another; progress goes to standard error
    Replace(ReplaceArgs),
    /// Changes a replicated setting
    Set { name: String, value: String },
    /// Shows a replicated setting
    Get { name: String },
    /// The cluster version, and what each member could run
    Version,
    /// Keeps the cluster version from rising, or lets it
    Upgrade {
        #[command(subcommand)]
        step: UpgradeStep,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
pub enum UpgradeStep {
    /// The version is not raised until `finish`: the way back to the old program stays open
    Hold,
    /// The version is raised once every member can run it
    Finish,
}

pub(crate) async fn run(args: &ClusterArgs) -> Result<(), Failure> {
    let mut client = Client::new(&args.access)?;
    let mut output = Output::new();
    match &args.command {
        None => status(&mut client, &mut output, args.json).await,
        Some(ClusterCommand::Info) => show(&mut client, &mut output, args.json, "INFO").await,
        Some(ClusterCommand::Version) => show(&mut client, &mut output, args.json, "VERSION").await,
        Some(ClusterCommand::Nodes) => {
            let nodes = nodes(&mut client).await?;
            show_nodes(&nodes, &mut output, args.json)
        }
        Some(ClusterCommand::Replace(replacement)) => {
            replace::run(&mut client, replacement).await?;
            done(&mut output, args.json)
        }
        Some(ClusterCommand::Get { name }) => {
            let value = client.read(&["LOCK.CLUSTER", "GET", name]).await?;
            if args.json {
                output.json(&json!({"name": name, "value": value.to_json()}))
            } else {
                output.line(&value.shown())
            }
        }
        Some(ClusterCommand::Add { id, peer_addr }) => {
            change(&mut client, &["ADD", &id.to_string(), peer_addr]).await?;
            done(&mut output, args.json)
        }
        Some(ClusterCommand::Remove { id }) => {
            change(&mut client, &["REMOVE", &id.to_string()]).await?;
            done(&mut output, args.json)
        }
        Some(ClusterCommand::Transfer { id }) => {
            change(&mut client, &["TRANSFER", &id.to_string()]).await?;
            done(&mut output, args.json)
        }
        Some(ClusterCommand::Set { name, value }) => {
            change(&mut client, &["SET", name, value]).await?;
            done(&mut output, args.json)
        }
        Some(ClusterCommand::Upgrade { step }) => {
            let step = match step {
                UpgradeStep::Hold => "HOLD",
                UpgradeStep::Finish => "FINISH",
            };
            change(&mut client, &["UPGRADE", step]).await?;
            done(&mut output, args.json)
        }
    }
}

async fn change(client: &mut Client, words: &[&str]) -> Result<(), Failure> {
    client.change(&[&["LOCK.CLUSTER"], words].concat()).await.map(drop)
}

fn done(output: &mut Output, is_json: bool) -> Result<(), Failure> {
    output.line(if is_json { r#"{"ok":true}"# } else { "OK" })
}

/// A map, a line for each field.
async fn show(client: &mut Client, output: &mut Output, is_json: bool, what: &str) -> Result<(), Failure> {
    let reply = client.read(&["LOCK.CLUSTER", what]).await?;
    if is_json {
        return output.json(&reply.to_json());
    }
    if let Reply::Map(fields) = &reply {
        for (name, value) in fields {
            output.line(&format!("{:<16}{}", format!("{}:", name.shown()), value.shown()))?;
        }
    }
    Ok(())
}

async fn nodes(client: &mut Client) -> Result<Vec<Reply>, Failure> {
    Ok(client.read(&["LOCK.CLUSTER", "NODES"]).await?.items().to_vec())
}

fn number(map: &Reply, field: &str) -> i64 {
    map.field(field).and_then(Reply::int).unwrap_or(0)
}

fn text(map: &Reply, field: &str) -> String {
    map.field(field).map_or_else(|| "-".to_owned(), Reply::shown)
}

/// How many entries a member's log is behind the furthest one.
fn lag(nodes: &[Reply], node: &Reply) -> i64 {
    let furthest = nodes.iter().map(|node| number(node, "match")).max().unwrap_or(0);
    furthest - number(node, "match")
}

fn show_nodes(nodes: &[Reply], output: &mut Output, is_json: bool) -> Result<(), Failure> {
    if is_json {
        return nodes.iter().try_for_each(|node| output.json(&node.to_json()));
    }
    let mut table = Table::new(&["ID", "ADDRESS", "ROLE", "UP", "MATCH", "BEHIND"]);
    for node in nodes {
        let role = text(node, "role");
        let style = match role.as_str() {
            "leader" => Style::Good,
            "quarantined" => Style::Bad,
            _ => Style::Plain,
        };
        let is_up = number(node, "up") == 1;
        table.row(vec![
            Cell::new(text(node, "id")),
            Cell::new(text(node, "addr")),
            Cell::styled(role, style),
            if is_up { Cell::styled("yes", Style::Good) } else { Cell::styled("no", Style::Bad) },
            Cell::new(text(node, "match")),
            Cell::new(lag(nodes, node).to_string()),
        ]);
    }
    output.table(&table)
}

async fn status(client: &mut Client, output: &mut Output, is_json: bool) -> Result<(), Failure> {
    let info = client.read(&["LOCK.CLUSTER", "INFO"]).await?;
    let version = client.read(&["LOCK.CLUSTER", "VERSION"]).await?;
    let nodes = nodes(client).await?;
    if is_json {
        let nodes: Vec<_> = nodes.iter().map(Reply::to_json).collect();
        output.json(&json!({"info": info.to_json(), "version": version.to_json(), "nodes": nodes}))?;
    } else {
        let has_quorum = number(&info, "quorum") == 1;
        let quorum = if has_quorum {
            output.paint("quorum", Style::Good)
        } else {
            output.paint("NO QUORUM", Style::Bad)
        };
        output.line(&format!(
            "node {} ({}): {quorum}, leader {}, term {}, commit {}, applied {}",
            text(&info, "id"),
            text(&info, "role"),
            text(&info, "leader"),
            text(&info, "term"),
            text(&info, "commit"),
            text(&info, "applied")
        ))?;
        let hold = if number(&version, "hold") == 1 { ", held back by UPGRADE HOLD" } else { "" };
        output.line(&format!("cluster version {}{hold}", text(&version, "cluster_version")))?;
        output.line("")?;
        show_nodes(&nodes, output, false)?;
    }
    match number(&info, "quorum") {
        1 => Ok(()),
        _ => Err(Failure::new(exit::FAILED, format!("{} has no quorum", client.address()))),
    }
}
