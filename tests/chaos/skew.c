/* Shifts the wall clock of a process by as many microseconds as a file says, at any time.
   Preloaded into redis-server: cc -shared -fPIC -o skew.so skew.c */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("TOLLGATE_CHAOS_SKEW");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file < 0)
    _exit(97);
  void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED)
    _exit(98);
  offset = mapped;
}

/* By the system call: the library's own function is the one that is replaced. */
int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, clock, now);
  if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    int64_t micros = (int64_t)now->tv_sec * 1000000 + now->tv_nsec / 1000 + *offset;
    now->tv_sec = micros / 1000000;
    now->tv_nsec = micros % 1000000 * 1000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  (void)zone;
  int failed = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *out) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (out)
    *out = precise.tv_sec;
  return precise.tv_sec;
}
