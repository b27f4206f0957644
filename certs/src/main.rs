//! `redfence-certs DIR [HOST…]`: an authority, a server certificate and a client certificate, for a first try of TLS.

#![forbid(unsafe_code)]

use redfence_certs::{Authority, Usage};
use std::path::Path;
use std::process::ExitCode;

/// The ACL user that the client certificate names.
const CLIENT: &str = "app";
const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((directory, hosts)) = words.split_first().filter(|(first, _)| !first.starts_with('-')) else {
        eprintln!("redfence-certs DIR [HOST…]: writes ca, server and client certificates into DIR; HOST: more names of the server");
        return ExitCode::FAILURE;
    };
    match write_all(Path::new(directory), hosts) {
        Ok(()) => {
            println!("{directory}: ca.crt ca.key server.crt server.key client.crt client.key (CN {CLIENT})");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("redfence-certs: {directory}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(directory: &Path, hosts: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    std::fs::create_dir_all(directory)?;
    let authority = Authority::new("Redfence test authority")?;
    let hosts: Vec<&str> = LOCAL_HOSTS.into_iter().chain(hosts.iter().map(String::as_str)).collect();
    authority.issue("redfence", &hosts, Usage::Server)?.write(directory, "server")?;
    authority.issue(CLIENT, &[], Usage::Client)?.write(directory, "client")?;
    authority.pair().write(directory, "ca")?;
    Ok(())
}
