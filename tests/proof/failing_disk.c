/* Stands between the real agent and the kernel (LD_PRELOAD): the N-th write, sync or truncation of a file whose path holds
 * a given part fails, lies or kills. For tests alone; never linked into the program.
 *
 * FAILING_DISK = HOW:N:COUNT:ERRNO:PART:TOLD
 *   HOW    fail (not done), lie (done, and called failed), die (SIGKILL before it)
 *   N      the first call that is touched, from 1; COUNT how many from there on (0 = for good)
 *   PART   of the path, e.g. ".db"
 *   TOLD   a file that is made when the first call is touched
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char how[8], part[64], told[512];
static unsigned long first, count;
static int number, set;
static atomic_ulong calls;

__attribute__((constructor)) static void read_plan(void) {
    const char *plan = getenv("FAILING_DISK");
    set = plan && sscanf(plan, "%7[^:]:%lu:%lu:%d:%63[^:]:%511s", how, &first, &count, &number, part, told) == 6;
}

/* Whether this call is touched; dies here if that is the plan. */
static int touched(int fd) {
    if (!set) return 0;
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!strstr(path, part)) return 0;
    unsigned long call = atomic_fetch_add(&calls, 1) + 1;
    if (call < first || (count && call >= first + count)) return 0;
    int made = syscall(SYS_openat, AT_FDCWD, told, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (made >= 0) syscall(SYS_close, made);
    if (!strcmp(how, "die")) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;) pause();
    }
    return 1;
}

#define PASS(fd, real)                              \
    do {                                            \
        if (!touched(fd)) return real;              \
        if (!strcmp(how, "lie")) (void)!(real);     \
        errno = number;                             \
        return -1;                                  \
    } while (0)

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    PASS(fd, syscall(SYS_pwrite64, fd, bytes, length, at));
}
ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    PASS(fd, syscall(SYS_pwrite64, fd, bytes, length, at));
}
ssize_t write(int fd, const void *bytes, size_t length) { PASS(fd, syscall(SYS_write, fd, bytes, length)); }
int fdatasync(int fd) { PASS(fd, syscall(SYS_fdatasync, fd)); }
int fsync(int fd) { PASS(fd, syscall(SYS_fsync, fd)); }
int ftruncate64(int fd, off64_t length) { PASS(fd, syscall(SYS_ftruncate, fd, length)); }
int ftruncate(int fd, off_t length) { PASS(fd, syscall(SYS_ftruncate, fd, length)); }
