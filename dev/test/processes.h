// processes.h: ranks of a run that are processes of a test's program. Include it after ranks.h.
#ifndef TIDE_PROCESSES_H
#define TIDE_PROCESSES_H
#include <sys/wait.h>
#include "test.h"

enum { MOST = 7, FOREVER = 60 };  // seconds: far more than anything here takes

static struct {  // of the processes that are started together
    int world, port;
    pid_t processes[MOST];
    int codes[MOST];           // exit code, or 128 + signal
    char texts[2][4096];       // what they print: stdout, stderr
    int files[2];
} job;

typedef void (*Scene)(int rank);

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

// Returns a port at which nobody listens, and none of those that the kernel chooses from.
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

// Prepares a job of so many processes.
static void job_new(int processes) {
    memset(&job, 0, sizeof job);
    for (int i = 0; i < 2; i++) {
        job.files[i] = memfd_create("text", 0);
        fcntl(job.files[i], F_SETFL, O_APPEND);  // else two that write at once may write to one place
    }
    job.port = free_port();
    job.world = processes;
}

// Starts one of the processes; its main() is the scene.
static void start_rank(int slot, int rank, int world, Scene scene) {
    if ((job.processes[slot] = fork_rank(rank, world, job.port, FOREVER)) != 0) return;
    for (int i = 0; i < 2; i++) dup2(job.files[i], STDOUT_FILENO + i);
    scene(rank);
    exit(0);
}

// Waits for all of them.
static void finish(void) {
    for (int r = 0; r < job.world; r++) job.codes[r] = code_of(job.processes[r]);
    for (int i = 0; i < 2; i++) {
        const ssize_t n = pread(job.files[i], job.texts[i], sizeof job.texts[i] - 1, 0);
        CHECK(n >= 0, "%s", strerror(errno));
        close(job.files[i]);
    }
}

static void play(int world, Scene scene) {
    job_new(world);
    for (int r = 0; r < world; r++) start_rank(r, r, world, scene);
    finish();
}
#endif
