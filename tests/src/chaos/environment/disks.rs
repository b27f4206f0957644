//! A disk for each host that loses in a power cut what was not synced: ext4 in an image file in memory.
//!
//! What a node wrote and did not sync is in the kernel's cache and not in the image. A copy of the image is therefore the
//! disk as a power cut would leave it; it takes the disk's place, and the node starts on it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::run;
use crate::process::poll_until;

const CANARY: &[u8] = b"on its way to the disk";
/// What a node may need with the small state of a run, by `docs/operations.md`: 2.2 GB of log, and some snapshots of 70 MB. Only what is
/// used takes memory: blocks that are given back are discarded.
const IMAGE_MB: u64 = 3_000;
/// A file's time of change is no finer than a tick of the kernel.
const TICK: Duration = Duration::from_millis(12);
const COPY_WITHIN: Duration = Duration::from_secs(10);

pub struct Disks {
    folder: PathBuf,
}

impl Disks {
    pub fn set_up(hosts: usize, folder: &Path) -> Result<Disks, String> {
        let folder = folder.join("disks");
        std::fs::create_dir(&folder).map_err(|error| error.to_string())?;
        run(&["mount", "-t", "tmpfs", "chaos", text(&folder)])?;
        let disks = Disks { folder };
        for at in 0..hosts {
            let image = disks.image(at);
            run(&["truncate", "-s", &format!("{IMAGE_MB}M"), text(&image)])?;
            run(&["mkfs.ext4", "-q", "-m", "0", text(&image)])?;
            std::fs::create_dir(disks.folder(at)).map_err(|error| error.to_string())?;
            disks.mount(at)?;
        }
        Ok(disks)
    }

    pub fn folder(&self, at: usize) -> PathBuf {
        self.folder.join(format!("host-{at}"))
    }

    fn image(&self, at: usize) -> PathBuf {
        self.folder.join(format!("host-{at}.img"))
    }

    fn left_behind(&self, at: usize) -> PathBuf {
        self.folder.join(format!("host-{at}.cut"))
    }

    fn mount(&self, at: usize) -> Result<(), String> {
        run(&["mount", "-o", "loop,discard", text(&self.image(at)), text(&self.folder(at))])
    }

    /// Something written and never synced: it must not be there after the cut, or there was none.
    fn canary(&self, at: usize) -> PathBuf {
        self.folder(at).join("never-synced")
    }

    /// The power goes. The host's processes must stand still (SIGSTOP). The kernel may still be writing by itself, so the copy
    /// counts only where nothing was written to the image meanwhile.
    pub fn cut(&self, at: usize) -> Result<(), String> {
        std::fs::write(self.canary(at), CANARY).map_err(|error| error.to_string())?;
        let (image, copy) = (self.image(at), self.left_behind(at));
        let changed =
            || std::fs::metadata(&image).and_then(|file| file.modified()).map_err(|e| e.to_string());
        let mut outcome = Err("the image is written to all the time".to_string());
        poll_until(COPY_WITHIN, || {
            let copied = (|| {
                let before = changed()?;
                if SystemTime::now().duration_since(before).is_ok_and(|age| age < TICK) {
                    return Ok(false);
                }
                run(&["cp", "--sparse=always", text(&image), text(&copy)])?;
                Ok(changed()? == before)
            })();
            match copied {
                Ok(false) => false,
                Ok(true) => {
                    outcome = Ok(());
                    true
                }
                Err(error) => {
                    outcome = Err(error);
                    true
                }
            }
        });
        outcome
    }

    /// The power is back: the disk holds what the cut left. No process of the host may be alive.
    pub fn come_back(&self, at: usize) -> Result<(), String> {
        run(&["umount", text(&self.folder(at))])?;
        std::fs::rename(self.left_behind(at), self.image(at)).map_err(|error| error.to_string())?;
        self.mount(at)?;
        match std::fs::read(self.canary(at)) {
            Ok(bytes) if bytes == CANARY => {
                Err("the power cut lost nothing: what was never synced is there".into())
            }
            // Its name may have come through, with nothing in it.
            Ok(_) => std::fs::remove_file(self.canary(at)).map_err(|error| error.to_string()),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for at in 0.. {
            if !self.folder(at).exists() {
                break;
            }
            // Whatever is left vanishes with this process's namespace.
            let _ = run(&["umount", text(&self.folder(at))]);
        }
        let _ = run(&["umount", text(&self.folder)]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path made of ASCII")
}
