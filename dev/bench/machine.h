// machine.h: on what machine a benchmark runs, and whether it has it to itself. The first lines of
// all of them.
#ifndef TIDE_MACHINE_H
#define TIDE_MACHINE_H
#include "../../tide/cpu/cpu.h"

// The share of the time for which the unluckiest thread had a CPU, while as many threads as a
// benchmark's only read the clock. Between two readings pass nanoseconds; where it was 0.1 ms or
// more, another program had the CPU, or another virtual machine.
static double machine_share(double seconds) {
    double least = 1;
    #pragma omp parallel reduction(min : least)
    {
        const double start = seconds_now();
        double now = start, lost = 0;
        while (now - start < seconds) {
            const double next = seconds_now();
            if (next - now > 1e-4) lost += next - now;
            now = next;
        }
        least = 1 - lost / (now - start);
    }
    return least;
}

// Prints CPU, instructions and load, and a warning if others use the machine.
static void machine_describe(void) {
    double load = 0;
    cpu_describe();
    printf("load: ");
    if (getloadavg(&load, 1) == 1)
        printf("%.2f on %ld CPUs; ", load, sysconf(_SC_NPROCESSORS_ONLN));
    const double share = machine_share(0.5);
    printf("the thread with least of a CPU has %.0f %%\n", 100 * share);
    if (share < 0.97)
        printf("warning: this machine is busy: times are too long, and ratios are uncertain\n");
    printf("\n");
    fflush(stdout);
}

#endif
