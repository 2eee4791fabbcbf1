/* Fails, kills at or records file-system calls on one folder; for LD_PRELOAD, see disk_faults.py and recorded_changes.py.
   Nothing is flushed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MAX_CALLS = 1 << 16 };

static char folder[PATH_BYTES]; /* calls on other folders are not counted */
static char kinds[MAX_CALLS + 1];
static long n_calls, first_failing, last_failing;
static int failure; /* an errno; 0 kills the process */
static int journal = -1; /* open file that gets a line for each call that has succeeded */
static char counted[32] = "cfrtuwolm"; /* kinds of calls: creating, flushing, renaming, truncating, unlinking, writing, ... */

/* Start counting; let the calls first..last (from 1) fail with an errno. */
void faults_start(const char *path, long first, long last, int error) {
    snprintf(folder, sizeof folder, "%s", path);
    memset(kinds, 0, sizeof kinds);
    n_calls = 0;
    first_failing = first;
    last_failing = last;
    failure = error;
}

/* Count and fail only these kinds from now on. */
void faults_only(const char *only) {
    snprintf(counted, sizeof counted, "%s", only);
}

/* Stop, and return one letter for each call. */
const char *faults_stop(void) {
    folder[0] = 0;
    return kinds;
}

/* Write a line "KIND<tab>PATH<tab>NEW PATH" to an open file for each call that succeeds from now on. */
void faults_record(int file) { journal = file; }

static int is_inside(const char *path) { return folder[0] && strncmp(path, folder, strlen(folder)) == 0; }

static int fails(char kind, const char *path) {
    if (!is_inside(path) || !strchr(counted, kind)) return 0;
    long call = __atomic_add_fetch(&n_calls, 1, __ATOMIC_SEQ_CST);
    if (call <= MAX_CALLS) kinds[call - 1] = kind;
    if (call < first_failing || call > last_failing) return 0;
    if (!failure) kill(getpid(), SIGKILL);
    errno = failure;
    return 1;
}

/* Return the path of an open file, or of a name in an open folder; NULL if it has none. */
static const char *path_at(char *path, int file, const char *name) {
    char link[64];
    if (name && name[0] == '/') return name;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, PATH_BYTES);
    if (n < 0) return NULL;
    snprintf(path + n, PATH_BYTES, name ? "/%s" : "%s", name ? name : "");
    return path;
}

static int fails_at(char kind, int file, const char *name) {
    char path[2 * PATH_BYTES];
    const char *full = folder[0] ? path_at(path, file, name) : NULL;
    return full && fails(kind, full);
}

static long told(char kind, const char *path, const char *new_path, long result) {
    char line[4 * PATH_BYTES];
    int error = errno;
    if (result >= 0 && journal >= 0 && path && is_inside(path)) {
        int n = snprintf(line, sizeof line, "%c\t%s\t%s\n", kind, path, new_path);
        if (syscall(SYS_write, journal, line, n) != n) kill(getpid(), SIGKILL);
    }
    errno = error;
    return result;
}

static long told_at(char kind, int file, const char *name, long result) {
    char path[2 * PATH_BYTES];
    int error = errno;
    const char *full = result >= 0 && journal >= 0 && folder[0] ? path_at(path, file, name) : NULL;
    errno = error;
    return told(kind, full, "", result);
}

/* An opening creates a file, empties it, or leaves it as it is. */
static int opened(int flags, int existed, int file) {
    if (file < 0) return file;
    if ((flags & O_CREAT) && !existed) return told_at('c', file, NULL, 0), file;
    if (flags & O_TRUNC) return told_at('t', file, NULL, 0), file;
    return file;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static char opening(int at, const char *path, int flags) {
    return flags & O_CREAT && faccessat(at, path, F_OK, 0) != 0 ? 'c' : 'o';
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
#define OPEN(at, path, flags, refused, call) \
    MODE(flags) \
    if (refused) return -1; \
    int existed = !((flags) & O_CREAT) || faccessat(at, path, F_OK, 0) == 0; \
    return opened(flags, existed, call)
#define WRITE(kind, name, file, ...) return fails_at(kind, file, 0) ? -1 : told_at(kind, file, 0, REAL(name)(file, __VA_ARGS__))

int open(const char *path, int flags, ...) { OPEN(AT_FDCWD, path, flags, fails(opening(AT_FDCWD, path, flags), path), REAL(open)(path, flags, mode)); }
int open64(const char *path, int flags, ...) { OPEN(AT_FDCWD, path, flags, fails(opening(AT_FDCWD, path, flags), path), REAL(open64)(path, flags, mode)); }
int openat(int at, const char *path, int flags, ...) { OPEN(at, path, flags, fails_at(opening(at, path, flags), at, path), REAL(openat)(at, path, flags, mode)); }
int openat64(int at, const char *path, int flags, ...) { OPEN(at, path, flags, fails_at(opening(at, path, flags), at, path), REAL(openat64)(at, path, flags, mode)); }
ssize_t write(int file, const void *data, size_t n) { WRITE('w', write, file, data, n); }
ssize_t pwrite(int file, const void *data, size_t n, off_t at) { WRITE('w', pwrite, file, data, n, at); }
ssize_t pwrite64(int file, const void *data, size_t n, off64_t at) { WRITE('w', pwrite64, file, data, n, at); }
int ftruncate(int file, off_t n) { WRITE('t', ftruncate, file, n); }
int ftruncate64(int file, off64_t n) { WRITE('t', ftruncate64, file, n); }
int fsync(int file) { return fails_at('f', file, 0) ? -1 : told_at('f', file, 0, 0); }
int fdatasync(int file) { return fails_at('f', file, 0) ? -1 : told_at('f', file, 0, 0); }
int mkdir(const char *path, mode_t mode) { return fails('m', path) ? -1 : told('m', path, "", REAL(mkdir)(path, mode)); }
int rename(const char *from, const char *to) { return fails('r', from) ? -1 : told('r', from, to, REAL(rename)(from, to)); }
int renameat2(int at, const char *from, int to_at, const char *to, unsigned flags) {
    const char kind = flags & RENAME_EXCHANGE ? 'x' : 'r';
    return fails_at('r', at, from) ? -1 : told(kind, from, to, REAL(renameat2)(at, from, to_at, to, flags));
}
int link(const char *from, const char *to) { return fails('l', from) ? -1 : told('l', from, to, REAL(link)(from, to)); }
int linkat(int at, const char *from, int to_at, const char *to, int flags) { /* Python 3.14's os.link */
    return fails_at('l', at, from) ? -1 : told('l', from, to, REAL(linkat)(at, from, to_at, to, flags));
}
int unlink(const char *path) { return fails('u', path) ? -1 : told('u', path, "", REAL(unlink)(path)); }
int unlinkat(int at, const char *path, int flags) { return fails_at('u', at, path) ? -1 : told_at('u', at, path, REAL(unlinkat)(at, path, flags)); }
int rmdir(const char *path) { return fails('u', path) ? -1 : told('u', path, "", REAL(rmdir)(path)); }

int flock(int file, int operation) { return fails_at('k', file, 0) ? -1 : (int)syscall(SYS_flock, file, operation); }
ssize_t read(int file, void *data, size_t n) { return fails_at('i', file, 0) ? -1 : syscall(SYS_read, file, data, n); }
ssize_t pread(int file, void *data, size_t n, off_t at) { return fails_at('i', file, 0) ? -1 : syscall(SYS_pread64, file, data, n, at); }
ssize_t pread64(int file, void *data, size_t n, off64_t at) { return fails_at('i', file, 0) ? -1 : syscall(SYS_pread64, file, data, n, at); }

#define FCNTL(name) \
    int name(int file, int command, ...) { \
        va_list rest; va_start(rest, command); long argument = va_arg(rest, long); va_end(rest); \
        int locks = command == F_SETLK || command == F_SETLKW; \
        return locks && fails_at('k', file, 0) ? -1 : (int)syscall(SYS_fcntl, file, command, argument); \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

#define MAP(name, offset_type) \
    void *name(void *at, size_t n, int access_bits, int flags, int file, offset_type from) { \
        if (file >= 0 && fails_at('p', file, 0)) return MAP_FAILED; \
        return (void *)syscall(SYS_mmap, at, n, access_bits, flags, file, from); \
    }
MAP(mmap, off_t)
MAP(mmap64, off64_t)
