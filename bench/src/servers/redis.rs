//! A redis-server of our own, in memory: no snapshots, no append-only file.

use super::{call, free_ports, local, temporary_directory, Process, START_ATTEMPTS};
use crate::resp;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

pub(crate) struct Redis {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    /// Where clients come with TLS, if there are certificates.
    pub(crate) tls: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Redis {
    pub(crate) fn start(module: Option<&Path>) -> Result<Redis, String> {
        Redis::start_secured(module, None)
    }

    /// `certificates`: where `ca.crt`, `server.crt` and `server.key` are, for TLS on a second port.
    pub(crate) fn start_secured(module: Option<&Path>, certificates: Option<&Path>) -> Result<Redis, String> {
        let mut last = String::new();
        for _ in 0..START_ATTEMPTS {
            match Redis::try_start(module, certificates) {
                Ok(redis) => return Ok(redis),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn try_start(module: Option<&Path>, certificates: Option<&Path>) -> Result<Redis, String> {
        let directory = temporary_directory()?;
        let [port, tls] = free_ports()?;
        let mut command = Command::new("redis-server");
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.arg("--dir").arg(directory.path());
        if let Some(module) = module {
            command.arg("--loadmodule").arg(module);
        }
        if let Some(certificates) = certificates {
            command.args(["--tls-port", &tls.to_string(), "--tls-auth-clients", "no"]);
            command.arg("--tls-ca-cert-file").arg(certificates.join("ca.crt"));
            command.arg("--tls-cert-file").arg(certificates.join("server.crt"));
            command.arg("--tls-key-file").arg(certificates.join("server.key"));
        }
        let mut process = Process::start(&mut command, &directory.path().join("log"))?;
        process.await_listening(local(port))?;
        Ok(Redis { process, address: local(port), tls: local(tls), _directory: directory })
    }

    pub(crate) fn load_functions(&self, library: &[u8]) -> Result<(), String> {
        let reply = call(self.address, &[b"FUNCTION", b"LOAD", b"REPLACE", library])?;
        if resp::is_error(&reply) {
            return Err(resp::shown(&reply));
        }
        Ok(())
    }
}

/// The digest to call it by.
pub(crate) fn load_script(address: SocketAddr, script: &[u8]) -> Result<Vec<u8>, String> {
    let reply = call(address, &[b"SCRIPT", b"LOAD", script])?;
    let digest = resp::lines(&reply).nth(1).filter(|digest| digest.len() == 40).map(<[u8]>::to_vec);
    digest.ok_or_else(|| format!("no digest from SCRIPT LOAD: {}", resp::shown(&reply)))
}
