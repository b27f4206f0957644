/* Put before a program with LD_PRELOAD: shifts its time of day by what the file named CHAOS_CLOCK says, in nanoseconds,
 * at any moment. The monotonic clock stays as it is. Used by tests/src/chaos/ground/wall_clock.rs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static volatile int64_t *shift_ns;

__attribute__((constructor)) static void start(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *page = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    shift_ns = page == MAP_FAILED ? NULL : page;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) start();
    int result = real(clock, now);
    if (result == 0 && shift_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t total = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + *shift_ns;
        now->tv_sec = total / 1000000000;
        now->tv_nsec = total % 1000000000;
    }
    return result;
}
