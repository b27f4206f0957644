//! What the disk itself allows: a 4 KiB write into a preallocated file and fdatasync, again and again. No replicated lock can be quicker than
//! this once it waits for its disk; many can share one.

use crate::latencies::Latencies;
use crate::options::Options;
use crate::report::Findings;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

const BLOCK: [u8; 4096] = [b'x'; 4096];
const BLOCKS: usize = 256;
const SYNCS: usize = 3_000;
const SYNCS_QUICK: usize = 200;

pub(crate) fn run(options: &Options) -> Result<Findings, String> {
    let directory = crate::servers::temporary_directory()?;
    let failed = |error: std::io::Error| format!("the disk: {error}");
    let mut file = std::fs::File::create(directory.path().join("sync")).map_err(failed)?;
    file.write_all(&BLOCK.repeat(BLOCKS)).map_err(failed)?;
    file.sync_all().map_err(failed)?;
    let mut latencies = Latencies::default();
    let began = Instant::now();
    let syncs = if options.quick { SYNCS_QUICK } else { SYNCS };
    for at in 0..syncs {
        let asked_at = Instant::now();
        file.seek(SeekFrom::Start((at % BLOCKS * BLOCK.len()) as u64)).map_err(failed)?;
        file.write_all(&BLOCK).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        latencies.record(asked_at.elapsed());
    }
    println!("\nthe disk: 4 KiB and fdatasync, one after the other");
    let mut findings = Findings::default();
    findings.figure("disk", "fdatasync, p50", latencies.quantile_us(0.5), "us");
    findings.figure("disk", "fdatasync, p99", latencies.quantile_us(0.99), "us");
    findings.figure("disk", "fdatasync", syncs as f64 / began.elapsed().as_secs_f64(), "/s");
    Ok(findings)
}
