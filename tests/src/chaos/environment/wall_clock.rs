//! The time of day as each host sees it, shifted at will while the node runs. Fences follow the wall clock; deadlines must not.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::run;

const SOURCE: &str = include_str!("wall_clock.c");

pub struct WallClocks {
    library: PathBuf,
    shifts: Vec<PathBuf>,
}

impl WallClocks {
    pub fn set_up(hosts: usize, folder: &Path) -> Result<WallClocks, String> {
        let (source, library) = (folder.join("wall_clock.c"), folder.join("wall_clock.so"));
        std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
        let (from, to) = (source.to_string_lossy(), library.to_string_lossy());
        run(&["cc", "-shared", "-fPIC", "-O2", "-o", &to, &from, "-ldl"])?;
        let shifts: Vec<PathBuf> = (0..hosts).map(|at| folder.join(format!("clock-{at}"))).collect();
        for shift in &shifts {
            std::fs::write(shift, 0i64.to_ne_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(WallClocks { library, shifts })
    }

    pub fn environment(&self, at: usize) -> Vec<(String, String)> {
        vec![
            ("LD_PRELOAD".into(), self.library.to_string_lossy().into_owned()),
            ("CHAOS_CLOCK".into(), self.shifts[at].to_string_lossy().into_owned()),
        ]
    }

    /// From now on the host's time of day is off by this much.
    pub fn shift(&self, at: usize, seconds: i64) -> Result<(), String> {
        let file = std::fs::File::options().write(true).open(&self.shifts[at]).map_err(|e| e.to_string())?;
        file.write_all_at(&(seconds * 1_000_000_000).to_ne_bytes(), 0).map_err(|e| e.to_string())
    }
}
