//! Where the programs under test are, and what to tell whoever has not built them.
//!
//! `REDFENCE_MODULE`, `REDFENCE_BIN`, `REDFENCE_NEXT_BIN` and `REDIS_SERVER` name them; without, the module and the program are
//! looked for beside the test binary (the same profile first, then the other), and redis-server in `PATH`.

use std::path::{Path, PathBuf};

pub fn module() -> Result<PathBuf, String> {
    find("REDFENCE_MODULE", "libredfence_module.so", "cargo build -p redfence-module")
}

pub fn redfence() -> Result<PathBuf, String> {
    find("REDFENCE_BIN", "redfence", "cargo build -p redfence")
}

/// The program that plays the next release: cluster version 3 is made up.
pub fn redfence_next() -> Result<PathBuf, String> {
    let build = "cargo build -p redfence --features next-version --bin redfence-next";
    find("REDFENCE_NEXT_BIN", "redfence-next", build)
}

pub fn redis_server() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os("REDIS_SERVER") {
        return existing(PathBuf::from(path), "REDIS_SERVER");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            "redis-server is not in PATH: apt-get install redis-server, or set REDIS_SERVER".into()
        })
}

/// The Lua library's folder in the source tree.
pub fn lua_folder() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lua");
    if folder.is_dir() {
        Ok(folder)
    } else {
        Err(format!("{} is missing: the Lua library is part of the source tree", folder.display()))
    }
}

fn find(variable: &str, file: &str, build: &str) -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(variable) {
        return existing(PathBuf::from(path), variable);
    }
    let test_binary = std::env::current_exe().map_err(|error| format!("current_exe: {error}"))?;
    // target/<profile>/deps/<test>, or target/<profile>/<program>: the sibling profiles are beside the profile's folder.
    let folder = test_binary.parent().unwrap_or(Path::new(""));
    let profile = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let profile = profile.to_owned();
    let target = profile.parent().map(Path::to_owned).unwrap_or_default();
    let candidates = [profile.join(file), target.join("debug").join(file), target.join("release").join(file)];
    candidates.iter().find(|path| path.is_file()).cloned().ok_or_else(|| {
        format!("{file} is in neither profile of {}: run `{build}`, or set {variable}", target.display())
    })
}

fn existing(path: PathBuf, variable: &str) -> Result<PathBuf, String> {
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{variable} names {}, which is no file", path.display()))
    }
}
