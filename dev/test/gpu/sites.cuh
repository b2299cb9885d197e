// sites.cuh: the calls that order a step, to be left out one by one: that must be noticed. Leaves out
// the one at the place TIDE_LEAVE_OUT, "function: call", and writes the places that were run to the
// file TIDE_SITES (mutants.sh). To be included before the files whose calls these are.
#ifndef TIDE_SITES_CUH
#define TIDE_SITES_CUH
#include "../../../tide/gpu/queue.cuh"

static const char *const site_left_out = getenv("TIDE_LEAVE_OUT");
static const char *const site_list = getenv("TIDE_SITES");

static bool site_runs(const char *function, const char *call, bool *seen) {
    char place[512];
    if (site_left_out == NULL && site_list == NULL) return true;
    snprintf(place, sizeof place, "%s: %s", function, call);
    FILE *f = *seen || site_list == NULL ? NULL : fopen(site_list, "a");
    if (f != NULL) fprintf(f, "%s\n", place);
    if (f != NULL) fclose(f);
    *seen = true;
    return site_left_out == NULL || strcmp(place, site_left_out) != 0;
}

#define SITE(text, call) \
    do { \
        static bool seen; \
        if (site_runs(__func__, text, &seen)) call; \
    } while (0)
#define stream_wait(s, e) SITE("stream_wait(" #s ", " #e ")", stream_wait(s, e))
#define event_record(e, s) SITE("event_record(" #e ", " #s ")", event_record(e, s))
#define event_wait(e) SITE("event_wait(" #e ")", event_wait(e))
#define stream_sync(s) SITE("stream_sync(" #s ")", stream_sync(s))
#define device_sync() SITE("device_sync()", device_sync())
#define stream_copy(to, from, n, kind, s) \
    SITE("stream_copy(" #to ", " #from ")", stream_copy(to, from, n, kind, s))

#include "../../../tide/gpu/host.cuh"
#define host_queue_submit(q, work, arg, n) \
    SITE("host_queue_submit(" #q ", " #work ")", host_queue_submit(q, work, arg, n))

#include "../../../tide/gpu/gpt2.cuh"
#define order(g, a, b) SITE("order(" #a ", " #b ")", order(g, a, b))
#define copy_out(g, to, from, n, s) \
    SITE("copy_out(" #to ", " #from ")", copy_out(g, to, from, n, s))
#define copy_out_wide(g, to, from, n) \
    SITE("copy_out_wide(" #to ", " #from ")", copy_out_wide(g, to, from, n))
#define copy_in(g, to, from, n, s) SITE("copy_in(" #to ", " #from ")", copy_in(g, to, from, n, s))

#endif
