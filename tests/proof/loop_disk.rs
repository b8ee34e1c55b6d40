//! An ext4 of its own on a loop file, that can lose its power or turn read-only; unmounted and detached when dropped.
//!
//! Needs root and loop devices. Where that is not allowed, `mount` says so in one line and gives none.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Stops a process group, then `EXT4_IOC_SHUTDOWN` with `NOLOGFLUSH`: from there on nothing reaches the device, not even the
/// journal. The stop comes first because a power cut takes the processor too: a sync that is under way at the shutdown
/// returns success in this kernel although its data is lost, and nobody must live to believe it.
/// (By Python, because an ioctl is unsafe code, which this package has none of. It waits at its standard input, so that
/// the moment is the test's.)
const CUT: &str = "import fcntl, os, signal, struct, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
print('ready', flush=True)
group = int(sys.stdin.readline())
if group:
    os.killpg(group, signal.SIGSTOP)
fcntl.ioctl(disk, 0x8004587D, struct.pack('I', 2))
if group:
    os.killpg(group, signal.SIGKILL)
";

/// A hand at the switch of one disk.
pub struct Switch {
    hand: Child,
}

impl Switch {
    /// Cuts the power of the disk, and with it everything that runs in this process group.
    #[track_caller]
    pub fn cut(mut self, group: Option<u32>) {
        let mut input = self.hand.stdin.take().expect("piped");
        writeln!(input, "{}", group.unwrap_or(0)).expect("written");
        drop(input);
        assert!(self.hand.wait().expect("waits").success(), "the power could not be cut");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.hand.kill();
        let _ = self.hand.wait();
    }
}

pub struct LoopDisk {
    image: PathBuf,
    at: PathBuf,
    mounted: bool,
    _folder: tempfile::TempDir,
}

impl LoopDisk {
    /// A fresh file system over this folder. `None` where the machine does not allow it.
    pub fn mount(at: &Path) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let image = folder.path().join("image");
        std::fs::File::create(&image).and_then(|file| file.set_len(96 << 20)).expect("a sparse file");
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image))?;
        let mut disk = Self { image, at: at.to_owned(), mounted: false, _folder: folder };
        disk.power_on_or_skip()?;
        Some(disk)
    }

    fn power_on_or_skip(&mut self) -> Option<()> {
        // The kernel takes the loop device away with the last user of the mount.
        run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&self.image).arg(&self.at))?;
        self.mounted = true;
        Some(())
    }

    /// Mounts again what is on the device.
    #[track_caller]
    pub fn power_on(&mut self) {
        self.power_on_or_skip().expect("it mounted before");
    }

    /// Ready to cut. It has the disk open until then.
    #[track_caller]
    pub fn switch(&self) -> Switch {
        let mut hand = Command::new("python3")
            .args(["-c", CUT])
            .arg(&self.at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        BufReader::new(hand.stdout.take().expect("piped")).read_line(&mut line).expect("it is ready");
        Switch { hand }
    }

    /// Everybody who has a file open must be gone.
    #[track_caller]
    pub fn unmount(&mut self) {
        let done = Command::new("umount").arg(&self.at).output().expect("umount runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        self.mounted = false;
    }

    /// The device as /proc/mounts names it, e.g. `loop3`.
    fn device(&self) -> Option<String> {
        let mounts = std::fs::read_to_string("/proc/mounts").ok()?;
        let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == self.at.to_str())?;
        Some(line.split(' ').next()?.strip_prefix("/dev/")?.to_owned())
    }

    /// As after an error of the device: the file system turns read-only. False where the kernel has no such trigger.
    pub fn fail(&self) -> bool {
        let Some(device) = self.device() else { return false };
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a test").is_ok()
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if self.mounted && !Command::new("umount").arg(&self.at).status().is_ok_and(|status| status.success())
        {
            // Something of a failed test is still there: it goes with its last user.
            let _ = Command::new("umount").arg("-l").arg(&self.at).status();
        }
    }
}

fn run(command: &mut Command) -> Option<()> {
    match command.stdin(Stdio::null()).output() {
        Ok(done) if done.status.success() => Some(()),
        Ok(done) => {
            eprintln!("SKIPPED: no loop-mounted ext4 here: {}", String::from_utf8_lossy(&done.stderr).trim());
            None
        }
        Err(error) => {
            eprintln!("SKIPPED: {:?} cannot be run: {error}", command.get_program());
            None
        }
    }
}
