/* How fast all threads together read memory: bandwidth THREADS MIB PASSES STREAMS
 *
 * Each thread reads its own share of one block of MIB mebibytes, over and over, in STREAMS interleaved streams with a
 * software prefetch ahead: one linear stream alone does not keep a core's memory queue full. The block lies in huge
 * pages where the system gives them. Prints one line a pass: GB/s (1e9 bytes) from the first start to the last end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { LINE = 64, TURN = 4 * LINE, AHEAD = 4096, HUGE_PAGE = 2 << 20, MOST_STREAMS = 64, MOST_THREADS = 1024 };

typedef uint64_t vector __attribute__((vector_size(LINE)));

struct share {
    const char *start;
    size_t num_bytes; /* a multiple of streams * TURN */
    int streams;
    int passes;
    pthread_barrier_t *barrier;
    double began, ended; /* of the last pass, by the thread's own clock: the main thread may be late to look */
    uint64_t sum;        /* keeps the reads from being dropped */
};

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static uint64_t read_once(const struct share *share) {
    const size_t stride = share->num_bytes / (size_t)share->streams;
    vector a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t at = 0; at < stride; at += TURN) {
        const char *place = share->start + at;
        for (int stream = 0; stream < share->streams; ++stream, place += stride) {
            const vector *lines = (const vector *)place;
            for (int line = 0; line < TURN / LINE; ++line) __builtin_prefetch(place + AHEAD + line * LINE);
            a += lines[0];
            b += lines[1];
            c += lines[2];
            d += lines[3];
        }
    }
    const vector sum = a + b + c + d;
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static void *work(void *argument) {
    struct share *share = argument;
    for (int pass = 0; pass < share->passes; ++pass) {
        pthread_barrier_wait(share->barrier);
        share->began = now();
        share->sum += read_once(share);
        share->ended = now();
        pthread_barrier_wait(share->barrier);
        pthread_barrier_wait(share->barrier); /* the main thread has read the times */
    }
    return NULL;
}

/* Seconds from the first thread's start to the last one's end. */
static double duration(const struct share *shares, int threads) {
    double began = shares[0].began, ended = shares[0].ended;
    for (int index = 1; index < threads; ++index) {
        if (shares[index].began < began) began = shares[index].began;
        if (shares[index].ended > ended) ended = shares[index].ended;
    }
    return ended - began;
}

static int argument(const char *text, const char *name, int most) {
    char *end;
    const long value = strtol(text, &end, 10);
    if (*end || value < 1 || value > most) {
        fprintf(stderr, "%s must be 1..%d, got %s\n", name, most, text);
        exit(2);
    }
    return (int)value;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: bandwidth THREADS MIB PASSES STREAMS\n");
        return 2;
    }
    const int threads = argument(argv[1], "THREADS", MOST_THREADS);
    const size_t mib = (size_t)argument(argv[2], "MIB", 1 << 20);
    const int passes = argument(argv[3], "PASSES", 1 << 20);
    const int streams = argument(argv[4], "STREAMS", MOST_STREAMS);
    const size_t unit = (size_t)streams * TURN;
    const size_t turns = (mib << 20) / (size_t)threads / unit;
    if (!turns) {
        fprintf(stderr, "%zu MiB are too few for %d threads of %d streams\n", mib, threads, streams);
        return 1;
    }
    const size_t each = (turns - (turns % 2 == 0)) * unit; /* odd, so that streams do not meet in the same cache sets */
    const size_t total = (each * (size_t)threads + AHEAD + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    char *block = aligned_alloc(HUGE_PAGE, total);
    if (!block) {
        fprintf(stderr, "there is no memory for %zu MiB\n", mib);
        return 1;
    }
#ifdef MADV_HUGEPAGE
    madvise(block, total, MADV_HUGEPAGE); /* a wish: small pages do as well, more slowly */
#endif
    memset(block, 1, total);

    static struct share shares[MOST_THREADS];
    static pthread_t ids[MOST_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int index = 0; index < threads; ++index) {
        shares[index] = (struct share){block + (size_t)index * each, each, streams, passes, &barrier, 0, 0, 0};
        if (pthread_create(&ids[index], NULL, work, &shares[index])) {
            fprintf(stderr, "cannot start thread %d\n", index);
            return 1;
        }
    }
    for (int pass = 0; pass < passes; ++pass) {
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        printf("%.3f\n", 1e-9 * (double)each * threads / duration(shares, threads));
        pthread_barrier_wait(&barrier);
    }
    uint64_t sum = 0;
    for (int index = 0; index < threads; ++index) {
        pthread_join(ids[index], NULL);
        sum += shares[index].sum;
    }
    fprintf(stderr, "sum %llu\n", (unsigned long long)sum);
    pthread_barrier_destroy(&barrier);
    free(block);
    return 0;
}
