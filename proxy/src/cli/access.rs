//! How a program reaches a cluster: addresses, TLS, user and password; and the next node where one does not answer.

use super::connection::{late, Connection, Tls, ANSWER_WITHIN, GREETING_WITHIN, QUESTION_WITHIN};
use super::exit::{self, Failure};
use super::reply::Reply;
use crate::secret::{self, Secret};
use crate::tls::upstream::client_config;
use clap::Args;
use rustls::pki_types::ServerName;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout, Instant};

/// How long a program looks for a node that answers.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);

/// The options of every program that asks a cluster.
#[derive(Clone, Debug, Default, Args)]
pub struct AccessArgs {
    /// Addresses of nodes, as a Redis client would use them, separated by commas. The next one is asked where one does not answer
    #[arg(
        long,
        value_name = "ADDR,…",
        env = "REDFENCE_ADDR",
        value_delimiter = ',',
        default_value = "127.0.0.1:6380",
        global = true
    )]
    pub addr: Vec<String>,

    /// The database whose locks are meant, as SELECT has it [default: 0]
    #[arg(long, value_name = "N", global = true)]
    pub db: Option<u32>,

    #[command(flatten)]
    pub login: LoginArgs,
}

/// Who we are, and how we know the node.
#[derive(Clone, Debug, Default, Args)]
pub struct LoginArgs {
    /// A file with the password for the cluster [default: the environment variable REDFENCE_PASSWORD]
    #[arg(long, value_name = "FILE", global = true)]
    pub password_file: Option<PathBuf>,

    /// The user to log in as [default: default]
    #[arg(long, value_name = "NAME", global = true)]
    pub user: Option<String>,

    /// Speak TLS: a file with the authority of the node's certificate
    #[arg(long, value_name = "FILE", global = true)]
    pub tls_ca: Option<PathBuf>,

    /// The name in the node's certificate [default: the host of its address]
    #[arg(long, value_name = "NAME", requires = "tls_ca", global = true)]
    pub tls_name: Option<String>,

    /// Our own certificate, where the node wants one
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key", global = true)]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert", global = true)]
    pub tls_key: Option<PathBuf>,
}

/// A node that was found, and a way to the next one.
pub(crate) struct Access {
    nodes: Vec<NodeAddress>,
    user: Option<String>,
    password: Option<Secret>,
    db: Option<u32>,
    /// The node that is asked.
    at: usize,
}

struct NodeAddress {
    address: String,
    tls: Option<Tls>,
}

/// Why there is no connection.
pub(crate) enum ConnectError {
    /// Another node, or a later try, may do.
    Unreachable(String),
    /// The node answered, and refuses us.
    Refused(String),
}

impl Access {
    /// The files are read here, so that an error in them is told at once.
    pub(crate) fn new(args: &AccessArgs) -> Result<Access, Failure> {
        Ok(Access { db: args.db, ..Access::of(&args.addr, &args.login)? })
    }

    pub(crate) fn of(addresses: &[String], args: &LoginArgs) -> Result<Access, Failure> {
        let password = password(args.password_file.as_deref())?;
        if args.user.is_some() && password.is_none() {
            return Err("--user needs a password: --password-file or REDFENCE_PASSWORD".to_owned().into());
        }
        let config = match &args.tls_ca {
            None => None,
            Some(ca) => {
                let client = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
                Some(Arc::new(client_config("tls", ca, client)?))
            }
        };
        let node = |address: &String| {
            let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
            if address.contains("://") || port.is_none() {
                return Err(format!("{} is no address of a node; use host:port", address.escape_debug()));
            }
            let tls = match &config {
                None => None,
                Some(config) => Some(Tls {
                    config: Arc::clone(config),
                    name: tls_name(args.tls_name.as_deref(), address)?,
                }),
            };
            Ok::<_, String>(NodeAddress { address: address.clone(), tls })
        };
        let nodes = addresses.iter().filter(|address| !address.is_empty()).map(node);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        if nodes.is_empty() {
            return Err("--addr names no node".to_owned().into());
        }
        Ok(Access { nodes, user: args.user.clone(), password, db: None, at: 0 })
    }

    /// How many nodes there are to ask.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The address that was asked last, or is asked next.
    pub(crate) fn address(&self) -> &str {
        &self.nodes[self.at].address
    }

    /// From now on the next node is asked.
    pub(crate) fn advance(&mut self) {
        self.at = (self.at + 1) % self.nodes.len();
    }

    /// A connection to the node that is asked at this time: logged in, RESP3.
    pub(crate) async fn connect_here(&self) -> Result<Connection, ConnectError> {
        let NodeAddress { address, tls } = &self.nodes[self.at];
        let unreachable =
            |error: io::Error| ConnectError::Unreachable(format!("cannot reach {address}: {error}"));
        let mut connection = Connection::open(address, tls.as_ref()).await.map_err(unreachable)?;
        let greeting = timeout(GREETING_WITHIN, self.greet(&mut connection)).await;
        match greeting.unwrap_or_else(|_| Err(late())).map_err(unreachable)? {
            None => Ok(connection),
            Some(refusal) => Err(ConnectError::Refused(format!("{address} refuses {refusal}"))),
        }
    }

    /// Answers what the node refuses, and why.
    async fn greet(&self, connection: &mut Connection) -> io::Result<Option<String>> {
        if let Some(password) = &self.password {
            let words: Vec<&str> =
                ["AUTH"].into_iter().chain(self.user.as_deref()).chain([password.expose()]).collect();
            if let Reply::Error(line) = connection.ask(&words).await? {
                return Ok(Some(format!("the password: {line}")));
            }
        }
        let database = self.db.map(|db| db.to_string());
        let hello = [vec!["HELLO", "3"]].into_iter();
        for words in hello.chain(database.iter().map(|db| vec!["SELECT", db])) {
            if let Reply::Error(line) = connection.ask(&words).await? {
                return Ok(Some(format!("the connection: {line}")));
            }
        }
        Ok(None)
    }

    /// A connection to the first node that answers, each asked once.
    pub(crate) async fn connect(&mut self) -> Result<Connection, ConnectError> {
        let mut reasons = Vec::new();
        for _ in 0..self.nodes.len() {
            match self.connect_here().await {
                Err(ConnectError::Unreachable(reason)) => {
                    reasons.push(reason);
                    self.advance();
                }
                outcome @ (Ok(_) | Err(ConnectError::Refused(_))) => return outcome,
            }
        }
        Err(ConnectError::Unreachable(reasons.join("; ")))
    }
}

/// A file wins over the environment.
fn password(file: Option<&Path>) -> Result<Option<Secret>, String> {
    let environment =
        std::env::var("REDFENCE_PASSWORD").ok().filter(|text| file.is_none() && !text.is_empty());
    secret::resolve("password", environment.map(Secret::from), file)
}

fn tls_name(name: Option<&str>, address: &str) -> Result<ServerName<'static>, String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = name.unwrap_or_else(|| host.trim_matches(['[', ']']));
    ServerName::try_from(name.to_owned()).map_err(|_| format!("tls-name '{name}' is no host name or address"))
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        match error {
            ConnectError::Unreachable(line) | ConnectError::Refused(line) => Failure::new(exit::FAILED, line),
        }
    }
}

/// Whether the command is certainly not applied, so that another node may be asked.
pub(crate) fn is_unavailable(line: &str) -> bool {
    ["UNAVAILABLE", "LOADING", "MASTERDOWN"].iter().any(|code| line.starts_with(code))
}

/// Asks the nodes of a cluster, one after the other where need be.
pub(crate) struct Client {
    access: Access,
    connection: Option<Connection>,
}

impl Client {
    pub(crate) fn new(args: &AccessArgs) -> Result<Client, Failure> {
        Ok(Client { access: Access::new(args)?, connection: None })
    }

    pub(crate) fn address(&self) -> &str {
        self.access.address()
    }

    /// A question: asked again at the next node where the connection breaks. An error reply is a failure.
    pub(crate) async fn read<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, Failure> {
        self.ask(words, true).await
    }

    /// A change: asked again only where it is certain that it was not applied.
    pub(crate) async fn change<W: AsRef<[u8]>>(&mut self, words: &[W]) -> Result<Reply, Failure> {
        self.ask(words, false).await
    }

    async fn ask<W: AsRef<[u8]>>(&mut self, words: &[W], may_repeat: bool) -> Result<Reply, Failure> {
        let give_up = Instant::now() + PATIENCE;
        let mut tries = 0;
        loop {
            tries += 1;
            let reason = match self.try_once(words, may_repeat).await? {
                Ok(Reply::Error(line)) if is_unavailable(&line) => line,
                Ok(Reply::Error(line)) => return Err(line.into()),
                Ok(reply) => return Ok(reply),
                Err(error) if may_repeat => format!("{}: {error}", self.access.address()),
                Err(error) => {
                    let address = self.access.address();
                    return Err(format!(
                        "{address}: {error}; it is not known whether the command was carried out"
                    )
                    .into());
                }
            };
            self.move_on();
            if Instant::now() >= give_up || tries >= 2 * self.access.nodes() {
                return Err(reason.into());
            }
            sleep(PAUSE).await;
        }
    }

    /// The outer error ends the program: no node answers, or one refuses us.
    async fn try_once<W: AsRef<[u8]>>(
        &mut self,
        words: &[W],
        may_repeat: bool,
    ) -> Result<io::Result<Reply>, Failure> {
        let within = if may_repeat { QUESTION_WITHIN } else { ANSWER_WITHIN };
        Ok(self.connected().await?.ask_within(words, within).await)
    }

    /// Many questions at once, at one node. An error reply stands in its place.
    pub(crate) async fn read_all(&mut self, commands: &[Vec<Vec<u8>>]) -> Result<Vec<Reply>, Failure> {
        for _ in 0..self.access.nodes() {
            match self.connected().await?.ask_all(commands).await {
                Ok(replies) => return Ok(replies),
                Err(_) => self.move_on(),
            }
        }
        Err(format!("{}: the connection is lost", self.access.address()).into())
    }

    /// The next question goes to the next node.
    pub(crate) fn move_on(&mut self) {
        self.connection = None;
        self.access.advance();
    }

    async fn connected(&mut self) -> Result<&mut Connection, Failure> {
        match &mut self.connection {
            Some(_) => {}
            none @ None => *none = Some(self.access.connect().await?),
        }
        Ok(self.connection.as_mut().expect("connected above"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_a_certificate_is_the_host_of_the_address() {
        let name = |name, address| tls_name(name, address).map(|name| name.to_str().into_owned());
        assert_eq!(name(None, "node1.example:6380"), Ok("node1.example".to_owned()));
        assert_eq!(name(None, "[::1]:6380"), Ok("::1".to_owned()));
        assert_eq!(name(Some("other"), "node1.example:6380"), Ok("other".to_owned()));
        assert!(name(Some("not a name"), "x:1").is_err());
    }
}
