//! The C side: SQLite's callbacks as thin shells around `Disk`. All the unsafe code of the simulation is here.
//!
//! Sound because SQLite calls an open file's methods only between its `xOpen` and its `xClose`, with buffers of the
//! length it says; regions of shared memory live in boxes that stay until every handle that mapped them has unmapped.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Once;

use rusqlite::ffi;

use super::{Change, Refusal, disk};

#[repr(C)]
struct OpenFile {
    base: ffi::sqlite3_file,
    id: u64,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let vfs = Box::leak(Box::new(ffi::sqlite3_vfs {
            iVersion: 2,
            szOsFile: size_of::<OpenFile>() as c_int,
            mxPathname: 512,
            pNext: std::ptr::null_mut(),
            zName: c"simvfs".as_ptr(),
            pAppData: std::ptr::null_mut(),
            xOpen: Some(open),
            xDelete: Some(delete),
            xAccess: Some(access),
            xFullPathname: Some(full_path),
            xDlOpen: None,
            xDlError: None,
            xDlSym: None,
            xDlClose: None,
            xRandomness: Some(randomness),
            xSleep: Some(sleep),
            xCurrentTime: None,
            xGetLastError: Some(last_error),
            xCurrentTimeInt64: Some(current_time),
            xSetSystemCall: None,
            xGetSystemCall: None,
            xNextSystemCall: None,
        }));
        // SAFETY: the VFS is leaked, so it lives as long as SQLite; all callbacks are static functions.
        let result = unsafe { ffi::sqlite3_vfs_register(vfs, 1) };
        assert_eq!(result, ffi::SQLITE_OK, "SQLite takes the VFS");
    });
}

/// SQLite draws its random numbers anew from this disk.
pub(super) fn reseed() {
    // SAFETY: documented: N < 1 resets the generator.
    unsafe { ffi::sqlite3_randomness(0, std::ptr::null_mut()) };
}

fn code(refusal: Refusal, io: c_int) -> c_int {
    match refusal {
        Refusal::Io => io,
        Refusal::Full => ffi::SQLITE_FULL,
        Refusal::Busy => ffi::SQLITE_BUSY,
    }
}

fn result(done: super::Done, io: c_int) -> c_int {
    done.map_or_else(|refusal| code(refusal, io), |()| ffi::SQLITE_OK)
}

/// SAFETY (of all callers): `file` is what `open` filled in and `close` has not been called.
unsafe fn id(file: *mut ffi::sqlite3_file) -> u64 {
    unsafe { (*file.cast::<OpenFile>()).id }
}

unsafe fn name<'n>(name: *const c_char) -> Option<&'n str> {
    // SAFETY: SQLite gives a C string or NULL.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_str().unwrap_or("?"))
}

unsafe extern "C" fn open(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let path = unsafe { name(path) };
    let opened = disk().open(path, flags & ffi::SQLITE_OPEN_CREATE != 0);
    // SAFETY: `file` has szOsFile bytes.
    unsafe {
        let file = file.cast::<OpenFile>();
        (*file).base.pMethods = std::ptr::null();
        match opened {
            Ok(id) => {
                (*file).id = id;
                (*file).base.pMethods = &METHODS;
                if !out_flags.is_null() {
                    *out_flags = flags;
                }
                ffi::SQLITE_OK
            }
            Err(_) => ffi::SQLITE_CANTOPEN,
        }
    }
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    disk().close(unsafe { id(file) });
    ffi::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    to: *mut c_void,
    amount: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: `to` has `amount` bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), amount as usize) };
    let disk = disk();
    let Ok(handle) = disk.handle(unsafe { id(file) }) else { return ffi::SQLITE_IOERR_READ };
    let live = &disk.files[handle.file].live;
    let from = (at as usize).min(live.len());
    let there = (live.len() - from).min(to.len());
    to[..there].copy_from_slice(&live[from..from + there]);
    if there == to.len() {
        return ffi::SQLITE_OK;
    }
    to[there..].fill(0);
    ffi::SQLITE_IOERR_SHORT_READ
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    amount: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: `from` has `amount` bytes.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), amount as usize) }.to_vec();
    let change = Change::Write { at: at as usize, bytes };
    result(disk().change(unsafe { id(file) }, change), ffi::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    result(disk().change(unsafe { id(file) }, Change::Truncate(size as usize)), ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    result(disk().sync(unsafe { id(file) }), ffi::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut ffi::sqlite3_int64) -> c_int {
    let disk = disk();
    let Ok(handle) = disk.handle(unsafe { id(file) }) else { return ffi::SQLITE_IOERR_FSTAT };
    // SAFETY: SQLite gives a place.
    unsafe { *size = disk.files[handle.file].live.len() as i64 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    result(disk().lock(unsafe { id(file) }, level), ffi::SQLITE_IOERR_LOCK)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    disk().set_level(unsafe { id(file) }, level);
    ffi::SQLITE_OK
}

unsafe extern "C" fn check_reserved(file: *mut ffi::sqlite3_file, found: *mut c_int) -> c_int {
    match disk().reserved(unsafe { id(file) }) {
        // SAFETY: SQLite gives a place.
        Ok(reserved) => unsafe {
            *found = c_int::from(reserved);
            ffi::SQLITE_OK
        },
        Err(_) => ffi::SQLITE_IOERR_CHECKRESERVEDLOCK,
    }
}

unsafe extern "C" fn file_control(_file: *mut ffi::sqlite3_file, _op: c_int, _arg: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_file: *mut ffi::sqlite3_file) -> c_int {
    4096
}

/// As SQLite's own VFS says of Unix files: a write changes no byte beside it, even when power is cut.
unsafe extern "C" fn characteristics(_file: *mut ffi::sqlite3_file) -> c_int {
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    number: c_int,
    size: c_int,
    extend: c_int,
    to: *mut *mut c_void,
) -> c_int {
    if size as usize != super::REGION {
        return ffi::SQLITE_IOERR_SHMMAP;
    }
    // SAFETY: SQLite gives a place.
    match disk().region(unsafe { id(file) }, number as usize, extend != 0) {
        Ok(region) => unsafe {
            *to = region.cast();
            ffi::SQLITE_OK
        },
        Err(_) => unsafe {
            *to = std::ptr::null_mut();
            ffi::SQLITE_IOERR_SHMMAP
        },
    }
}

unsafe extern "C" fn shm_lock(file: *mut ffi::sqlite3_file, first: c_int, n: c_int, flags: c_int) -> c_int {
    let mask = (((1u16 << n) - 1) << first) as u8;
    let lock = flags & ffi::SQLITE_SHM_LOCK != 0;
    let exclusive = flags & ffi::SQLITE_SHM_EXCLUSIVE != 0;
    result(disk().shm_lock(unsafe { id(file) }, mask, lock, exclusive), ffi::SQLITE_IOERR_SHMLOCK)
}

unsafe extern "C" fn shm_barrier(_file: *mut ffi::sqlite3_file) {}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _delete: c_int) -> c_int {
    disk().unmap(unsafe { id(file) });
    ffi::SQLITE_OK
}

unsafe extern "C" fn delete(_vfs: *mut ffi::sqlite3_vfs, path: *const c_char, sync_folder: c_int) -> c_int {
    let path = unsafe { name(path) }.unwrap_or_default();
    let mut disk = disk();
    if !disk.names.contains_key(path) {
        return ffi::SQLITE_IOERR_DELETE_NOENT;
    }
    result(disk.delete(path, sync_folder != 0), ffi::SQLITE_IOERR_DELETE)
}

unsafe extern "C" fn access(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    _flags: c_int,
    found: *mut c_int,
) -> c_int {
    let there = disk().names.contains_key(unsafe { name(path) }.unwrap_or_default());
    // SAFETY: SQLite gives a place.
    unsafe { *found = c_int::from(there) };
    ffi::SQLITE_OK
}

unsafe extern "C" fn full_path(
    _vfs: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    room: c_int,
    to: *mut c_char,
) -> c_int {
    // SAFETY: a C string, and `room` bytes to write to.
    unsafe {
        let bytes = CStr::from_ptr(path).to_bytes_with_nul();
        if bytes.len() > room as usize {
            return ffi::SQLITE_CANTOPEN;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), to, bytes.len());
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn randomness(_vfs: *mut ffi::sqlite3_vfs, amount: c_int, to: *mut c_char) -> c_int {
    // SAFETY: `to` has `amount` bytes.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), amount as usize) };
    let mut disk = disk();
    for chunk in to.chunks_mut(8) {
        let bytes = disk.random().to_le_bytes();
        chunk.copy_from_slice(&bytes[..chunk.len()]);
    }
    amount
}

unsafe extern "C" fn sleep(_vfs: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    let hook = disk().on_sleep;
    if let Some(hook) = hook {
        hook(i64::from(microseconds));
    }
    microseconds
}

unsafe extern "C" fn last_error(_vfs: *mut ffi::sqlite3_vfs, _room: c_int, _to: *mut c_char) -> c_int {
    0
}

/// Milliseconds of the Julian day.
unsafe extern "C" fn current_time(_vfs: *mut ffi::sqlite3_vfs, to: *mut ffi::sqlite3_int64) -> c_int {
    const UNIX_EPOCH_JULIAN_MS: i64 = 210_866_760_000_000;
    // SAFETY: SQLite gives a place.
    unsafe { *to = UNIX_EPOCH_JULIAN_MS + disk().now_ms };
    ffi::SQLITE_OK
}
