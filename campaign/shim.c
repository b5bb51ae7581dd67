/* Count, kill or fail the system calls that change or read files below a folder.

   LD_PRELOAD=shim.so SMI_SHIM=STATE program

   STATE is a file of one page that all processes map, so that they share one counter. campaign/
   trial.py writes the orders into it. Calls below `root` whose kind is in `kinds` are counted. Call
   number `at` (and all later ones if `sticky`) kills the process `victim` or fails with `error`.
   The wall clock goes back by `clock_step` nanoseconds with every question for the time. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { WRITE = 1, NAME = 2, SYNC = 4, READ = 8, CREATE = 16 };

struct state {
    int64_t count, at, victim, error, sticky, kinds, clock_step, clock_calls, fired, enabled;
    char root[1024];
    char what[1024]; /* the call that was hit */
};

static struct state *state;

__attribute__((constructor)) static void start(void) {
    const char *name = getenv("SMI_SHIM");
    if (!name) return;
    int fd = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (page != MAP_FAILED) state = page;
}

/* Return whether an absolute path is the folder or below it. */
static int below(const char *path) {
    size_t n = strlen(state->root);
    return n && !strncmp(path, state->root, n) && (path[n] == '/' || !path[n]);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return path[0] == '/';
}

static int full_path(int folder, const char *name, char *path) {
    char base[PATH_MAX];
    if (name[0] == '/') return snprintf(path, 2 * PATH_MAX, "%s", name) > 0;
    if (folder == AT_FDCWD ? !getcwd(base, sizeof base) : !path_of(folder, base)) return 0;
    return snprintf(path, 2 * PATH_MAX, "%s/%s", base, name) > 0;
}

/* Count a call; return the error with which it must fail, or 0. */
static int count(int kind, const char *call, const char *path) {
    if (!below(path)) return 0;
    int64_t number = __atomic_add_fetch(&state->count, 1, __ATOMIC_SEQ_CST);
    if (!state->at || number < state->at || (number > state->at && !state->sticky)) return 0;
    if (!__atomic_fetch_add(&state->fired, 1, __ATOMIC_SEQ_CST))
        snprintf(state->what, sizeof state->what, "%s %.900s", call, path);
    if (state->victim) {
        kill(state->victim, SIGKILL);
        if (getpid() == state->victim) pause();
        return 0;
    }
    return state->error;
}

static int ask(int kind) { return state && state->enabled && (state->kinds & kind); }

static int by_fd(int kind, const char *call, int fd) {
    char path[PATH_MAX];
    int saved = errno;
    if (!ask(kind) || !path_of(fd, path)) return errno = saved, 0;
    errno = saved;
    return count(kind, call, path);
}

static int by_name(int kind, const char *call, int folder, const char *name) {
    char path[2 * PATH_MAX];
    int saved = errno;
    if (!ask(kind) || !name || !full_path(folder, name, path)) return errno = saved, 0;
    errno = saved;
    return count(kind, call, path);
}

#define REAL(result, name, ...)                                   \
    static result (*real)(__VA_ARGS__);                           \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define FAIL(error) if (error) { errno = error; return -1; }

#define BY_FD(result, name, kind, parameters, arguments, ...)     \
    result name parameters {                                      \
        REAL(result, #name, __VA_ARGS__);                         \
        int wrong = by_fd(kind, #name, fd);                       \
        FAIL(wrong)                                               \
        return real arguments;                                    \
    }

BY_FD(ssize_t, write, WRITE, (int fd, const void *b, size_t n), (fd, b, n), int, const void *, size_t)
BY_FD(ssize_t, pwrite, WRITE, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int, const void *, size_t, off_t)
BY_FD(ssize_t, pwrite64, WRITE, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), int, const void *, size_t, off_t)
BY_FD(ssize_t, writev, WRITE, (int fd, const struct iovec *v, int n), (fd, v, n), int, const struct iovec *, int)
BY_FD(ssize_t, pwritev, WRITE, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o), int, const struct iovec *, int, off_t)
BY_FD(ssize_t, pwritev64, WRITE, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o), int, const struct iovec *, int, off_t)
BY_FD(ssize_t, pwritev2, WRITE, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f), int, const struct iovec *, int, off_t, int)
BY_FD(ssize_t, pwritev64v2, WRITE, (int fd, const struct iovec *v, int n, off_t o, int f), (fd, v, n, o, f), int, const struct iovec *, int, off_t, int)
BY_FD(ssize_t, sendfile, WRITE, (int fd, int from, off_t *o, size_t n), (fd, from, o, n), int, int, off_t *, size_t)
BY_FD(ssize_t, sendfile64, WRITE, (int fd, int from, off_t *o, size_t n), (fd, from, o, n), int, int, off_t *, size_t)
BY_FD(int, ftruncate, WRITE, (int fd, off_t n), (fd, n), int, off_t)
BY_FD(int, ftruncate64, WRITE, (int fd, off_t n), (fd, n), int, off_t)
BY_FD(int, fsync, SYNC, (int fd), (fd), int)
BY_FD(int, fdatasync, SYNC, (int fd), (fd), int)
BY_FD(ssize_t, read, READ, (int fd, void *b, size_t n), (fd, b, n), int, void *, size_t)
BY_FD(ssize_t, pread, READ, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), int, void *, size_t, off_t)
BY_FD(ssize_t, pread64, READ, (int fd, void *b, size_t n, off_t o), (fd, b, n, o), int, void *, size_t, off_t)
BY_FD(ssize_t, readv, READ, (int fd, const struct iovec *v, int n), (fd, v, n), int, const struct iovec *, int)

/* These return the error instead of setting errno. */
int posix_fallocate(int fd, off_t o, off_t n) {
    REAL(int, "posix_fallocate", int, off_t, off_t);
    int wrong = by_fd(WRITE, "posix_fallocate", fd);
    return wrong ? wrong : real(fd, o, n);
}
int posix_fallocate64(int fd, off_t o, off_t n) { return posix_fallocate(fd, o, n); }

#define BY_NAME(result, name, kind, folder, path, parameters, arguments, ...) \
    result name parameters {                                      \
        REAL(result, #name, __VA_ARGS__);                         \
        int wrong = by_name(kind, #name, folder, path);           \
        FAIL(wrong)                                               \
        return real arguments;                                    \
    }

BY_NAME(int, rename, NAME, AT_FDCWD, b, (const char *a, const char *b), (a, b), const char *, const char *)
BY_NAME(int, renameat, NAME, d, b, (int c, const char *a, int d, const char *b), (c, a, d, b), int, const char *, int, const char *)
BY_NAME(int, renameat2, NAME, d, b, (int c, const char *a, int d, const char *b, unsigned f), (c, a, d, b, f), int, const char *, int, const char *, unsigned)
BY_NAME(int, link, NAME, AT_FDCWD, b, (const char *a, const char *b), (a, b), const char *, const char *)
BY_NAME(int, linkat, NAME, d, b, (int c, const char *a, int d, const char *b, int f), (c, a, d, b, f), int, const char *, int, const char *, int)
BY_NAME(int, unlink, NAME, AT_FDCWD, a, (const char *a), (a), const char *)
BY_NAME(int, unlinkat, NAME, c, a, (int c, const char *a, int f), (c, a, f), int, const char *, int)
BY_NAME(int, rmdir, NAME, AT_FDCWD, a, (const char *a), (a), const char *)
BY_NAME(int, truncate, WRITE, AT_FDCWD, a, (const char *a, off_t n), (a, n), const char *, off_t)
BY_NAME(int, truncate64, WRITE, AT_FDCWD, a, (const char *a, off_t n), (a, n), const char *, off_t)
BY_NAME(int, mkdir, CREATE, AT_FDCWD, a, (const char *a, mode_t m), (a, m), const char *, mode_t)
BY_NAME(int, mkdirat, CREATE, c, a, (int c, const char *a, mode_t m), (c, a, m), int, const char *, mode_t)

/* Opening changes a file only if it creates or empties it. */
#define OPENING (O_CREAT | O_TRUNC)
#define MODE                                                      \
    mode_t mode = 0;                                              \
    if (flags & (O_CREAT | __O_TMPFILE)) {                        \
        va_list rest;                                             \
        va_start(rest, flags);                                    \
        mode = va_arg(rest, mode_t);                              \
        va_end(rest);                                             \
    }

#define OPEN(name)                                                \
    int name(const char *path, int flags, ...) {                  \
        REAL(int, #name, const char *, int, ...);                 \
        MODE                                                      \
        int wrong = flags & OPENING ? by_name(CREATE, #name, AT_FDCWD, path) : 0; \
        FAIL(wrong)                                               \
        return real(path, flags, mode);                           \
    }
#define OPENAT(name)                                              \
    int name(int folder, const char *path, int flags, ...) {      \
        REAL(int, #name, int, const char *, int, ...);            \
        MODE                                                      \
        int wrong = flags & OPENING ? by_name(CREATE, #name, folder, path) : 0; \
        FAIL(wrong)                                               \
        return real(folder, path, flags, mode);                   \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

int clock_gettime(clockid_t clock, struct timespec *t) {
    REAL(int, "clock_gettime", clockid_t, struct timespec *);
    int result = real(clock, t);
    if (result == 0 && clock == CLOCK_REALTIME && state && state->enabled && state->clock_step) {
        int64_t calls = __atomic_add_fetch(&state->clock_calls, 1, __ATOMIC_SEQ_CST);
        int64_t back = calls * state->clock_step;
        t->tv_sec -= back / 1000000000;
        t->tv_nsec -= back % 1000000000;
        if (t->tv_nsec < 0) t->tv_sec -= 1, t->tv_nsec += 1000000000;
    }
    return result;
}
