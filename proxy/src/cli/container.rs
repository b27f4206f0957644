//! Arguments of the programs that containers call: `redfence health` and `redfence join`.
//!
//! They read the environment of the node they stand beside, so an image or a pod names nothing twice.

use clap::Args;
use std::path::PathBuf;

pub const HEALTH_EXAMPLES: &str = "\
Examples:
  redfence health --admin 127.0.0.1:8080
  redfence health --admin 127.0.0.1:8080 --ready

Exit code 0 and one line where the node answers yes, 1 and one line where it does not.";

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The node's --admin address
    #[arg(long, value_name = "ADDR", env = "REDFENCE_ADMIN")]
    pub admin: String,

    /// Ask whether it can serve the correctness tier (/ready), not only whether it lives (/health). Not through TLS on the admin address
    #[arg(long)]
    pub ready: bool,
}

pub const JOIN_EXAMPLES: &str = "\
Example, beside `redfence serve --join --id 4 --data node4 --peer-listen 10.0.0.4:7380`:
  redfence join --via 10.0.0.1:6380 --id 4 --advertise 10.0.0.4:7380 --data node4

Does nothing where --data holds a node already, so it can run before every start. The password is read from --password-file
or from the environment variable REDFENCE_PASSWORD.";

#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Address of any member of the cluster, as a Redis client would use it
    #[arg(long, value_name = "ADDR")]
    pub via: String,

    /// The new node's number, 1 to 65535
    #[arg(long, value_name = "N", env = "REDFENCE_ID")]
    pub id: u64,

    /// Address under which other nodes reach the new one
    #[arg(long, value_name = "ADDR", env = "REDFENCE_ADVERTISE")]
    pub advertise: String,

    /// The new node's data directory
    #[arg(long, value_name = "DIR", env = "REDFENCE_DATA")]
    pub data: PathBuf,

    /// A file with the password for the cluster [default: the environment variable REDFENCE_PASSWORD]
    #[arg(long, value_name = "FILE", env = "REDFENCE_PASSWORD_FILE")]
    pub password_file: Option<PathBuf>,

    /// The user to log in as [default: default]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,

    /// Speak TLS: a file with the authority of the member's certificate
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,

    /// The name in the member's certificate [default: the host of --via]
    #[arg(long, value_name = "NAME", requires = "tls_ca")]
    pub tls_name: Option<String>,

    /// Our own certificate, where the member wants one
    #[arg(long, value_name = "FILE", requires = "tls_ca", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The key of --tls-cert
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
}
