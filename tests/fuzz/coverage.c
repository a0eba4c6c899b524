/* What gcc's -fsanitize-coverage=trace-pc calls at every block: a map of the steps from block to block. */

#include <stdint.h>
#include <string.h>

#define SIZE 65536

static uint8_t steps[SIZE], seen[SIZE];
static uintptr_t previous;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t) __builtin_return_address(0);
    uint8_t *step = &steps[(here ^ (here >> 16) ^ previous) % SIZE];
    if (*step < 255) ++*step;
    previous = (here << 1) % SIZE;
}

void coverage_begin(void) {
    memset(steps, 0, SIZE);
    previous = 0;
}

static int is_new(int at) {
    uint8_t magnitude = 1;
    for (int count = steps[at]; count > 1 && magnitude < 128; count >>= 1) magnitude <<= 1;
    if (seen[at] & magnitude) return 0;
    seen[at] |= magnitude;
    return 1;
}

/* How many steps were taken for the first time since the process began, or in a new magnitude of repetitions. */
int coverage_end(void) {
    int found = 0;
    for (int at = 0; at < SIZE; at += 8) {
        uint64_t eight;
        memcpy(&eight, &steps[at], 8);
        for (int one = at; eight && one < at + 8; one++)
            if (steps[one]) found += is_new(one);
    }
    return found;
}
