/* Fails or kills at chosen file-system calls on one folder; for LD_PRELOAD, see disk_faults.py. Nothing is flushed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MAX_CALLS = 1 << 16 };

static char folder[PATH_BYTES]; /* calls on other folders are not counted */
static char kinds[MAX_CALLS + 1];
static long n_calls, first_failing, last_failing;
static int failure; /* an errno; 0 kills the process */

/* Start counting; let the calls first..last (from 1) fail with an errno. */
void faults_start(const char *path, long first, long last, int error) {
    snprintf(folder, sizeof folder, "%s", path);
    memset(kinds, 0, sizeof kinds);
    n_calls = 0;
    first_failing = first;
    last_failing = last;
    failure = error;
}

/* Stop, and return one letter for each call. */
const char *faults_stop(void) {
    folder[0] = 0;
    return kinds;
}

static int fails(char kind, const char *path) {
    if (!folder[0] || strncmp(path, folder, strlen(folder)) != 0) return 0;
    long call = __atomic_add_fetch(&n_calls, 1, __ATOMIC_SEQ_CST);
    if (call <= MAX_CALLS) kinds[call - 1] = kind;
    if (call < first_failing || call > last_failing) return 0;
    if (!failure) kill(getpid(), SIGKILL);
    errno = failure;
    return 1;
}

static int fails_at(char kind, int file, const char *name) {
    char link[64], path[2 * PATH_BYTES];
    if (!folder[0]) return 0;
    if (name && name[0] == '/') return fails(kind, name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, PATH_BYTES);
    if (n < 0) return 0;
    snprintf(path + n, sizeof path - (size_t)n, "/%s", name ? name : "");
    return fails(kind, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return fails('o', path) ? -1 : REAL(open)(path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return fails('o', path) ? -1 : REAL(open64)(path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return fails_at('o', at, path) ? -1 : REAL(openat)(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return fails_at('o', at, path) ? -1 : REAL(openat64)(at, path, flags, mode); }
ssize_t write(int file, const void *data, size_t n) { return fails_at('w', file, 0) ? -1 : REAL(write)(file, data, n); }
ssize_t pwrite(int file, const void *data, size_t n, off_t at) { return fails_at('w', file, 0) ? -1 : REAL(pwrite)(file, data, n, at); }
ssize_t pwrite64(int file, const void *data, size_t n, off64_t at) { return fails_at('w', file, 0) ? -1 : REAL(pwrite64)(file, data, n, at); }
int ftruncate(int file, off_t n) { return fails_at('t', file, 0) ? -1 : REAL(ftruncate)(file, n); }
int ftruncate64(int file, off64_t n) { return fails_at('t', file, 0) ? -1 : REAL(ftruncate64)(file, n); }
int fsync(int file) { return fails_at('f', file, 0) ? -1 : 0; }
int fdatasync(int file) { return fails_at('f', file, 0) ? -1 : 0; }
int mkdir(const char *path, mode_t mode) { return fails('m', path) ? -1 : REAL(mkdir)(path, mode); }
int rename(const char *from, const char *to) { return fails('r', from) ? -1 : REAL(rename)(from, to); }
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) { return fails_at('r', at, from) ? -1 : REAL(renameat2)(at, from, to_at, to, flags); }
int link(const char *from, const char *to) { return fails('l', from) ? -1 : REAL(link)(from, to); }
int unlink(const char *path) { return fails('u', path) ? -1 : REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { return fails_at('u', at, path) ? -1 : REAL(unlinkat)(at, path, flags); }
int rmdir(const char *path) { return fails('u', path) ? -1 : REAL(rmdir)(path); }
