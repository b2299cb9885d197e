// processes.h: ranks of a run that are processes of a test's program. Include it after ranks.h.
#ifndef TIDE_PROCESSES_H
#define TIDE_PROCESSES_H
#include <sys/wait.h>

// ThreadSanitizer asks: else each process sleeps for a second when it ends.
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "atexit_sleep_ms=0"; }

// The environment that names no launcher.
static void set_none(void) {
    static const char *const names[] = {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
        "TORCHELASTIC_RUN_ID", "TIDE_JOB", "TIDE_TIMEOUT"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
}

static void set(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

// A port at which nobody listens, and none of those that the kernel chooses from.
static int free_port(void) {
    Error why;
    for (int fd = -1; fd < 0; close(fd)) {
        ranks.port = 20000 + (int)(((unsigned)getpid() * 7919u + (unsigned)rand()) % 12000);
        fd = ranks_socket("::", true, 0, &why);
    }
    return ranks.port;
}

// fork(), where the child is one of so many ranks on this machine, and ends after so many seconds.
static pid_t fork_rank(int rank, int world, int port, unsigned seconds) {
    fflush(stdout);
    const pid_t process = fork();
    if (process != 0) return process;
    set_none();
    set("RANK", rank);
    set("WORLD_SIZE", world);
    set("LOCAL_RANK", rank);
    set("LOCAL_WORLD_SIZE", world);
    set("MASTER_PORT", port);
    alarm(seconds);
    return 0;
}

// Waits for its end: the exit code, or 128 + the signal.
static int code_of(pid_t process) {
    int status;
    while (waitpid(process, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
#endif
