//! Fences at the resource: `PostgreSQL` (as a condition, by a trigger), and an HTTP service.

use redfence_client::tower::FenceLayer;
use redfence_client::{postgres, testing::Harness, Client, Lock, FENCE_HEADER};
use redfence_testserver::{Partition, TestServer};
use std::future::{ready, Ready};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tower_layer::Layer;
use tower_service::Service;

async fn start() -> (TestServer, Client) {
    let server = TestServer::start().expect("a free port on loopback");
    let harness = Harness::connect(server.address()).await.expect("it listens");
    let client = harness.client_with(Client::builder().operation_timeout(Duration::from_millis(300))).await;
    (server, client.expect("it listens"))
}

/// An earlier holder that does not know that it lost its lock, and the holder of today.
async fn two_holders(client: &Client, name: &str) -> (Lock, Lock) {
    let old = client.lock(name).acquire().await.expect("it is free");
    old.release().await.expect("it is held");
    let new = client.lock(name).acquire().await.expect("it is free");
    (old, new)
}

#[derive(Clone)]
struct Created;

impl Service<http::Request<String>> for Created {
    type Response = http::Response<String>;
    type Error = std::convert::Infallible;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Request<String>) -> Self::Future {
        ready(Ok(http::Response::builder().status(201).body(String::new()).expect("a response")))
    }
}

#[tokio::test]
async fn an_http_service_answers_412_to_a_stale_fence() {
    let (server, client) = start().await;
    let (old, new) = two_holders(&client, "wallet:7").await;
    let layer = FenceLayer::new(client.clone(), |request| {
        let is_write = request.method != http::Method::GET;
        is_write.then(|| request.uri.path().trim_start_matches('/').into())
    });
    let mut service = layer.layer(Created);
    let mut ask = async |method: &str, fence: Option<&str>| {
        let mut request = http::Request::builder().method(method).uri("http://here/wallet:7");
        if let Some(fence) = fence {
            request = request.header(FENCE_HEADER, fence);
        }
        let request = request.body(String::new()).expect("a request");
        service.call(request).await.expect("it never fails").status().as_u16()
    };
    assert_eq!(ask("POST", Some(&old.fence().to_string())).await, 201);
    assert_eq!(ask("POST", Some(&new.fence().to_string())).await, 201);
    assert_eq!(ask("POST", Some(&new.fence().to_string())).await, 201, "the holder may write again");
    assert_eq!(ask("POST", Some(&old.fence().to_string())).await, 412);
    assert_eq!(ask("GET", None).await, 201);
    assert_eq!(ask("POST", None).await, 428);
    for nonsense in ["x", "-1", "0", "9007199254740991"] {
        assert_eq!(ask("POST", Some(nonsense)).await, 400, "{nonsense}");
    }
    server.partition(Partition::NoQuorum);
    assert_eq!(ask("POST", Some(&new.fence().to_string())).await, 503);
}

/// A `PostgreSQL` of the test's own: a socket, no port, gone with it.
struct Postgres {
    folder: TempDir,
    server: Child,
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    let paths = std::env::var_os("PATH").unwrap_or_default();
    folders
        .into_iter()
        .rev()
        .chain(std::env::split_paths(&paths))
        .find(|folder| folder.join("initdb").is_file())
}

/// It refuses to run as root.
fn unprivileged(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if std::os::unix::fs::chown(folder, Some(65_534), Some(65_534)).is_ok() {
        command.uid(65_534).gid(65_534);
    }
    command
}

impl Postgres {
    fn start() -> Option<Postgres> {
        let programs = programs()?;
        let folder = TempDir::with_prefix("redfence-pg-").expect("a folder");
        let data = folder.path().join("data");
        let mut init = unprivileged(&programs.join("initdb"), folder.path());
        let made =
            init.args(["-A", "trust", "-U", "test", "--no-sync", "-D"]).arg(&data).status().expect("initdb");
        assert!(made.success(), "initdb");
        let mut command = unprivileged(&programs.join("postgres"), folder.path());
        command
            .arg("-D")
            .arg(&data)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-k"])
            .arg(folder.path());
        Some(Postgres { server: command.spawn().expect("postgres"), folder })
    }

    async fn connect(&self) -> tokio_postgres::Client {
        let began = Instant::now();
        loop {
            let config = format!("host={} user=test dbname=postgres", self.folder.path().display());
            match tokio_postgres::connect(&config, tokio_postgres::NoTls).await {
                Ok((client, connection)) => {
                    tokio::spawn(connection);
                    return client;
                }
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What `redfence fence-sql` prints, in short.
const TRIGGER: &str = "
CREATE FUNCTION check_fence() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.fence := current_setting('redfence.fence')::bigint;
    IF TG_OP = 'UPDATE' AND NEW.fence < OLD.fence THEN
        RAISE EXCEPTION 'stale fence % is behind %', NEW.fence, OLD.fence USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER check_fence BEFORE INSERT OR UPDATE ON guarded FOR EACH ROW EXECUTE FUNCTION check_fence();";

#[tokio::test]
async fn postgresql_refuses_a_stale_fence_as_a_condition_and_by_the_trigger() {
    let Some(server) = Postgres::start() else {
        let is_ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
        assert!(!is_ci, "PostgreSQL is not installed");
        eprintln!("left out: PostgreSQL is not installed");
        return;
    };
    let (_server, client) = start().await;
    let (old, new) = two_holders(&client, "wallet:7").await;
    let mut db = server.connect().await;
    let tables = "CREATE TABLE wallet (id int, balance int, fence bigint NOT NULL); INSERT INTO wallet VALUES (7, 0, 0);
         CREATE TABLE guarded (id int, balance int, fence bigint);";
    db.batch_execute(&format!("{tables}{TRIGGER}")).await.expect("tables");

    let update = "UPDATE wallet SET balance = $1, fence = $2 WHERE id = 7 AND fence <= $2";
    assert_eq!(db.execute(update, &[&1, &new.fence()]).await.expect("an update"), 1);
    assert_eq!(
        db.execute(update, &[&2, &new.fence()]).await.expect("an update"),
        1,
        "the holder may write again"
    );
    assert_eq!(db.execute(update, &[&3, &old.fence()]).await.expect("an update"), 0);

    let mut balances = Vec::new();
    for (lock, statement) in [
        (&old, "INSERT INTO guarded VALUES (7, 1)"),
        (&new, "UPDATE guarded SET balance = 2 WHERE id = 7"),
        (&old, "UPDATE guarded SET balance = 3 WHERE id = 7"),
    ] {
        let transaction = db.transaction().await.expect("a transaction");
        postgres::bind(&transaction, lock).await.expect("the setting");
        let outcome = transaction.execute(statement, &[]).await;
        balances.push(outcome.is_ok());
        if outcome.is_ok() {
            transaction.commit().await.expect("a commit");
        }
    }
    assert_eq!(balances, [true, true, false]);
    let balance: i32 = db.query_one("SELECT balance FROM guarded", &[]).await.expect("a row").get(0);
    assert_eq!(balance, 2);
    // The setting ended with its transaction.
    assert!(db.execute("UPDATE guarded SET balance = 4", &[]).await.is_err());
}
