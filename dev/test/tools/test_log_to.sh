#!/bin/sh
# Runs dev/log_to.py with packages in place of tensorboard and wandb that print their arguments; and
# checks that doc/logs.md has each field that the trainers write.
# usage: sh dev/test/tools/test_log_to.sh    (from the top of the repository)
set -u
. dev/test/cli.sh
in_a_folder
trap 'kill "${follower:-}" 2>/dev/null; rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1

missing=''
for field in $(cd "$top" && grep -ho '\\"[a-z0-9_]*\\":' tide/run/log.h tide/gpu/timeline.cuh tide/gpu/zo.cuh \
        tide/gpu/zero.cuh tide/gpu/zenflow.cuh train_gpt2.cu | tr -d '\\":' | sort -u); do
    grep -q "\`$field\`" "$top/doc/logs.md" || missing="$missing $field"
done
check fields_are_documented test -z "$missing"

command -v python3 >/dev/null || { echo "skip log_to: no python3 on this machine"; exit 0; }
mkdir -p with/tensorboard without run
: >with/tensorboard/__init__.py
cat >with/tensorboard/summary.py <<'E'
class Writer:
    def __init__(self, path):
        self.lines = [f"path {path}"]

    def add_scalar(self, name, x, step, wall_time):
        self.lines.append(f"{step} {name} {x} {wall_time}")

    def flush(self):
        print(*self.lines, sep="\n", flush=True) if self.lines else None
        self.lines = []

    def close(self):
        print("closed")
E
cat >with/wandb.py <<'E'
class init:
    def __init__(self, project, name):
        print(project, name)

    def log(self, values, step):
        print(step, *sorted(values.items()))

    def finish(self):
        print("finished")
E
echo 'raise ImportError("no such package")' >without/tensorboard.py
export PYTHONPATH="$work/with"
log_to=$top/dev/log_to.py

printf '%s\n' '{"step":1,"loss":5.5,"ms":1500,"offload":{"h2d_bytes":3e5},"zenflow":{"closes":true}}' \
    damaged '[1]' '{"step":"2"}' "{\"step\":2,\"x\":$(seq -s '' 999)}" '{"step":3,"loss":5,"ms":2500}' '{"step":3,"val_loss":2.25}' >run/log.jsonl
printf '{"step":4,' >>run/log.jsonl  # a line that is being written
touch -d @1000004 run/log.jsonl
cat >expected <<'E'
path tb/run
1 loss 5.5 1000001.5
1 ms 1500.0 1000001.5
1 offload/h2d_bytes 300000.0 1000001.5
1 zenflow/closes 1.0 1000001.5
3 loss 5.0 1000004.0
3 ms 2500.0 1000004.0
3 val_loss 2.25 1000004.0
closed
E
python3 "$log_to" run --tensorboard tb >got 2>damaged
check numbers_for_tensorboard diff expected got
check damaged_lines_are_named test "$(grep -c 'run/log.jsonl: a damaged line' damaged)" -eq 4
cat >expected <<'E'
mine run
1 ('loss', 5.5) ('ms', 1500.0) ('offload/h2d_bytes', 300000.0) ('zenflow/closes', 1.0)
3 ('loss', 5.0) ('ms', 2500.0)
3 ('val_loss', 2.25)
finished
E
python3 "$log_to" run/ --wandb mine >got 2>damaged
check numbers_for_wandb diff expected got

# Follows a log that grows, and then the log of a resumed run, which replaces it.
printf '{"step":1,"loss":5}\n{"step":2,"loss":4}\n{"step":' >run/log.jsonl
: >got  # here: what runs in the background may empty it too late
python3 "$log_to" run --tensorboard tb --follow >got &
follower=$!
has_lines() { await $follower sh -c "[ \$(wc -l <got) -ge $1 ]"; }  # N
has_lines 3
printf '3,"loss":3}\n' >>run/log.jsonl
has_lines 4
printf '{"step":1,"loss":5}\n{"step":2,"loss":4}\n' >new
mv new run/log.jsonl
sleep 1.2
printf '{"step":3,"loss":3}\n{"step":4,"loss":2}\n' >>run/log.jsonl
has_lines 6
cut -d ' ' -f 1-3 got >copied
printf 'path tb/run\n1 loss 5.0\n2 loss 4.0\n3 loss 3.0\n3 loss 3.0\n4 loss 2.0\n' >expected
check follows_a_run diff expected copied
check still_there kill $follower
follower=''

mkdir gone
echo '{"step":1}' >gone/log.jsonl
: >got
python3 "$log_to" gone --tensorboard tb --follow >got 2>gone.err &
follower=$!
has_lines 1
rm gone/log.jsonl
wait $follower
check a_log_that_is_removed_is_said test $? -eq 1 -a "$(cat gone.err)" = "tide: gone/log.jsonl: No such file or directory"
follower=''
mkdir -p tb/run
refuses a_run_that_is_there 2 'tb/run exists' python3 "$log_to" run --tensorboard tb
export PYTHONPATH="$work/without"
refuses no_tensorboard 1 'no such package: python3 -m pip install tensorboard' python3 "$log_to" run --tensorboard new
