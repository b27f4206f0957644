//! Flags, environment and file: which one counts, and what is refused.

use super::*;
use crate::cli::{Cli, Command};
use clap::Parser;

fn settings(flags: &[&str]) -> Settings {
    let argv = ["redfence", "serve"].iter().chain(flags);
    match Cli::try_parse_from(argv).unwrap().command {
        Command::Serve(args) => args.settings,
        other => panic!("{other:?}"),
    }
}

fn refused(flags: &[&str]) -> String {
    Config::resolve(settings(flags)).unwrap_err()
}

#[test]
fn with_nothing_said_it_is_a_single_local_node() {
    let config = Config::resolve(Settings::default()).unwrap();
    assert_eq!((config.id, config.listen), (1, "127.0.0.1:6380".parse().unwrap()));
    assert_eq!((config.peer_listen, config.redis, config.default_tier), (None, None, Tier::Correctness));
    assert_eq!(config.data, PathBuf::from("redfence-data"));
}

#[test]
fn flags_win_over_the_file() {
    let file = settings_from_toml(
        "id = 2\nlisten = '127.0.0.1:1111'\npeer-listen = '127.0.0.1:2222'\ndefault_tier = 'efficiency'\nroute = ['a*=correctness']",
    );
    let config = Config::resolve(settings(&["--listen", "127.0.0.1:3333"]).over(file.unwrap())).unwrap();
    assert_eq!((config.id, config.listen.port(), config.default_tier), (2, 3333, Tier::Efficiency));
    assert_eq!(config.peer_listen.unwrap().port(), 2222);
    assert_eq!(config.routes, [Route { pattern: b"a*".to_vec(), tier: Tier::Correctness }]);
}

#[test]
fn a_key_of_the_file_is_given_once_however_it_is_written() {
    let both = "default-tier = 'efficiency'\ndefault_tier = 'correctness'";
    let error = settings_from_toml(both).unwrap_err();
    assert_eq!(error, "default-tier is given twice, with - and with _");
}

#[test]
fn protected_mode_is_said_in_one_way_or_another() {
    let protected =
        |word: &str| Config::resolve(settings(&["--protected-mode", word])).map(|config| config.protected);
    for word in ["yes", "true", "1", "YES"] {
        assert_eq!(protected(word), Ok(true), "{word}");
    }
    for word in ["no", "false", "0", "No"] {
        assert_eq!(protected(word), Ok(false), "{word}");
    }
    assert_eq!(protected("2"), Err("protected-mode is '2': use yes or no".into()));
}

#[test]
fn an_acl_file_with_passwords_is_a_secret() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (key, users) = (folder.path().join("key"), folder.path().join("users"));
    std::fs::write(&key, "x").unwrap();
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let write = |text: &str, mode| {
        std::fs::write(&users, text).unwrap();
        std::fs::set_permissions(&users, PermissionsExt::from_mode(mode)).unwrap();
    };
    let (key, file) = (key.to_str().unwrap(), users.to_str().unwrap());
    let tls = ["--tls-cert", "cert", "--tls-key", key, "--acl-file", file];
    let beyond = [&["--listen", "0.0.0.0:6380"], &tls[..]].concat();
    write("user default off\nuser app on >secret ~* +@all\n", 0o644);
    assert!(refused(&beyond).contains("acl-file"), "{}", refused(&beyond));
    assert!(Config::resolve(settings(&tls)).is_ok(), "on loopback it is the operator's business");
    write("user default off\nuser app on >secret ~* +@all\n", 0o640);
    assert!(Config::resolve(settings(&beyond)).is_ok());
    write("user default off\nuser app on #ab12 ~* +@all\n", 0o644);
    assert!(Config::resolve(settings(&beyond)).is_ok(), "a hash is not the password");
}

#[test]
fn what_protected_mode_no_lifts_is_named() {
    let config = Config::resolve(settings(&[
        "--listen",
        "0.0.0.0:6380",
        "--redis-password",
        "hidden",
        "--protected-mode",
        "no",
    ]))
    .unwrap();
    let warnings = config.warnings.join("\n");
    for part in ["without TLS", "without a password", "redis-password"] {
        assert!(warnings.contains(part), "{warnings}");
    }
    assert!(!format!("{config:?}").contains("hidden"));
    assert!(!format!("{:?}", settings(&["--password", "hidden"])).contains("hidden"));
}

#[test]
fn beyond_loopback_with_tls_and_a_password_it_starts_unless_others_may_read_the_key() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (key, password) = (folder.path().join("key"), folder.path().join("password"));
    std::fs::write(&key, "x").unwrap();
    std::fs::write(&password, "x").unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let flags = [
        "--listen",
        "0.0.0.0:6380",
        "--admin",
        "0.0.0.0:6381",
        "--tls-cert",
        "cert",
        "--tls-key",
        key.to_str().unwrap(),
        "--password-file",
        password.to_str().unwrap(),
    ];
    mode(&key, 0o640);
    mode(&password, 0o600);
    assert_eq!(Config::resolve(settings(&flags)).unwrap().warnings, Vec::<String>::new());
    mode(&key, 0o644);
    assert!(refused(&flags).contains("may be read by every user"));
    let local: Vec<&str> =
        flags.iter().map(|flag| if flag.starts_with("0.0.0.0:") { "127.0.0.1:1" } else { flag }).collect();
    assert!(Config::resolve(settings(&local)).is_ok(), "on loopback it is the operator's business");
    mode(&key, 0o600);
    mode(&password, 0o604);
    assert!(refused(&flags).contains("password-file"));
}

#[test]
fn a_peer_secret_opens_the_way_beyond_loopback() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("secret");
    let file = path.to_str().unwrap();
    let peers = ["--peer-listen", "0.0.0.0:7380", "--peer-secret-file", file];
    std::fs::write(&path, "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let config = Config::resolve(settings(&peers)).unwrap();
    assert!(!config.peer_security().unwrap().is_plain());
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    assert!(config.peer_security().unwrap_err().contains("chmod 600"));
    let local = Config::resolve(settings(&["--peer-secret-file", file])).unwrap();
    assert!(local.peer_security().is_ok(), "a warning is enough on loopback");
    std::fs::write(&path, "").unwrap();
    assert!(local.peer_security().is_err(), "an empty secret is none");
    let argv = ["redfence", "serve", "--peer-secret", ""];
    assert!(Cli::try_parse_from(argv).is_err(), "a secret on the command line is not taken");
}

#[test]
fn routes_may_be_given_often() {
    let config =
        Config::resolve(settings(&["--route", "a=b=correctness", "--route", "c*=EFFICIENCY"])).unwrap();
    assert_eq!(config.routes[0].pattern, b"a=b");
    assert_eq!(config.routes[1].tier, Tier::Efficiency);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    for (flags, part) in [
        (&["--id", "0"][..], "id is 0"),
        (&["--id", "4", "--cluster", "1=127.0.0.1:1,2=127.0.0.1:2"], "id not in the cluster"),
        (&["--cluster", "1=127.0.0.1:1,2=127.0.0.1:1"], "cluster names the address 127.0.0.1:1 twice"),
        (&["--cluster", "1=127.0.0.1:1,1=127.0.0.1:2"], "twice"),
        (&["--cluster", "one=127.0.0.1:1"], "id=host:port"),
        (&["--listen", "nonsense"], "listen 'nonsense'"),
        (&["--listen", "0.0.0.0:6380"], "protected-mode"),
        (&["--listen", "0.0.0.0:6380"], "without a password"),
        (&["--admin", "0.0.0.0:6380"], "admin 0.0.0.0:6380 is beyond loopback"),
        (&["--password", ""], "password is empty"),
        (&["--redis-password", "", "--password", "x"], "redis-password is empty"),
        (&["--redis-password", "x"], "redis-password without a password of its own"),
        (&["--password", "x", "--password-file", "y"], "use one of them"),
        (&["--password-file", "/nowhere/y"], "password-file /nowhere/y"),
        (&["--tls-cert", "a"], "tls-cert without tls-key"),
        (&["--tls-key", "a"], "tls-key without tls-cert"),
        (&["--plain-listen", "127.0.0.1:0"], "plain-listen without TLS"),
        (&["--tls-client-ca", "a"], "tls-client-ca without TLS"),
        (&["--tls-cert", "a", "--tls-key", "b", "--tls-client-auth", "required"], "needs tls-client-ca"),
        (
            &["--tls-cert", "a", "--tls-key", "b", "--tls-client-ca", "c", "--tls-client-auth", "maybe"],
            "optional, required or off",
        ),
        (
            &["--tls-cert", "a", "--tls-key", "b", "--password", "x", "--plain-listen", "0.0.0.0:1"],
            "plain-listen 0.0.0.0:1 is beyond loopback and its traffic goes without TLS",
        ),
        (
            &["--listen", "0.0.0.0:6380", "--tls-cert", "a", "--tls-key", "b"],
            "listen 0.0.0.0:6380 is beyond loopback and anybody may use it without a password",
        ),
        (&["--listen", "0.0.0.0:6380", "--password", "x"], "TLS"),
        (&["--route", "wallet"], "GLOB=TIER"),
        (&["--route", "wallet*=strong"], "correctness or efficiency"),
        (&["--default-tier", "best"], "correctness or efficiency"),
        (&["--protected-mode", "maybe"], "yes or no"),
        (&["--heartbeat-ms", "200"], "at most half"),
        (&["--redis", "localhost"], "host:port"),
        (&["--redis", "http://localhost:1"], "host:port"),
        (&["--redis", "redis://:sekret@localhost:1"], "redis-password-file"),
        (&["--redis", "rediss://localhost:1"], "needs redis-tls-ca"),
        (&["--redis", "localhost:1", "--redis-tls"], "needs redis-tls-ca"),
        (&["--redis", "localhost:1", "--redis-tls-ca", "a"], "redis-tls-ca without redis-tls"),
        (&["--redis-tls", "--redis-tls-ca", "a"], "redis-tls without redis"),
        (&["--redis", "rediss://h:1", "--redis-tls-ca", "a", "--redis-tls-cert", "b"], "give both"),
        (&["--log-format", "xml"], "text or json"),
        (&["--redlock-listen", "0.0.0.0:1"], "protected-mode"),
        (&["--peer-listen", "0.0.0.0:7380"], "--peer-secret-file"),
        (&["--peer-listen", "0.0.0.0:7380", "--protected-mode", "no"], "--peer-secret-file"),
        (&["--cluster", "1=127.0.0.1:7380,2=10.0.0.2:7380", "--protected-mode", "no"], "cluster member 2"),
        (&["--advertise", "node1:7380", "--protected-mode", "no"], "advertise node1:7380"),
        (&["--peer-tls-cert", "a", "--peer-tls-key", "b"], "give all three"),
        (
            &["--peer-tls-cert", "a", "--peer-tls-key", "b", "--peer-tls-ca", "c", "--peer-secret-file", "d"],
            "use one of them",
        ),
        (&["--redlock-listen", "nonsense"], "redlock-listen 'nonsense'"),
    ] {
        let line = refused(flags);
        assert!(line.contains(part) && !line.contains('\n'), "{flags:?}: {line}");
    }
    assert!(Config::resolve(settings(&["--listen", "0.0.0.0:6380", "--protected-mode", "no"])).is_ok());
    assert!(settings_from_toml("lsiten = 'x'").unwrap_err().contains("lsiten"));
    assert!(settings_from_toml("id = 'x'").unwrap_err().starts_with("id: invalid type"));
}
