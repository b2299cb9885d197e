#!/usr/bin/env python3
"""Copies the numbers of OUT/log.jsonl (doc/logs.md) to TensorBoard or to Weights & Biases.

The last part of OUT is the name of the run there. A member of an object is named OBJECT/MEMBER;
true and false are 1 and 0. Exit code: 1 if a package is missing, 2 for a wrong call.
"""
import argparse
import json
import math
import os
import sys
import time


def end(code, text):
    print("tide: " + text, file=sys.stderr)
    sys.exit(code)


def batches(path, follow):
    """Yields the steps and numbers of the log's new whole lines, and the time of its last write:
    once, or each second."""
    file, rest, last = None, b"", 0
    while True:
        status = os.stat(path)
        # A run that is resumed replaces its log by one that is cut back: lines of steps that were
        # copied already have the same numbers.
        if file is None or not os.path.samestat(status, os.fstat(file.fileno())):
            file, rest = open(path, "rb"), b""
        *whole, rest = (rest + file.read()).split(b"\n")
        lines = []
        for text in whole:
            try:
                line = json.loads(text)
                step, values = line["step"], numbers(line)
                if not isinstance(step, int):
                    raise ValueError
                if step >= last:
                    lines.append((step, values))
                    last = step
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                print(f"tide: {path}: a damaged line is left out", file=sys.stderr)
        yield lines, status.st_mtime
        if not follow:
            return
        time.sleep(1)


def numbers(line):
    """Returns the numbers of a line by their names, its step aside."""
    flat = {}
    for key, value in line.items():
        members = value.items() if isinstance(value, dict) else [("", value)]
        flat.update({f"{key}/{member}" if member else key: float(x) for member, x in members
                     if isinstance(x, (int, float)) and math.isfinite(x)})
    del flat["step"]
    return flat


def open_tensorboard(folder, name):
    """Returns the functions add(step, numbers, time), flush() and close()."""
    from tensorboard.summary import Writer
    path = os.path.join(folder, name)
    if os.path.exists(path):
        end(2, f"{path} exists: remove it, or name another folder")
    writer = Writer(path)

    def add(step, values, at):
        for key, x in values.items():
            writer.add_scalar(key, x, step, wall_time=at)
    return add, writer.flush, writer.close


def open_wandb(project, name):
    import wandb
    run = wandb.init(project=project, name=name)
    return lambda step, values, at: run.log(values, step=step), lambda: None, run.finish


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", help="the folder of a run")
    to = parser.add_mutually_exclusive_group(required=True)
    to.add_argument("--tensorboard", metavar="DIR", help="write DIR/NAME, which must be new")
    to.add_argument("--wandb", metavar="PROJECT", help="make the run NAME of PROJECT")
    parser.add_argument("--follow", action="store_true",
                        help="copy new lines each second, until interrupted")
    o = parser.parse_args()
    path, name = os.path.join(o.out, "log.jsonl"), os.path.basename(os.path.abspath(o.out))
    if not os.path.isfile(path):
        end(2, f"there is no {path}: OUT is the folder of a run")
    try:
        add, flush, close = (open_tensorboard(o.tensorboard, name) if o.tensorboard else
                             open_wandb(o.wandb, name))
    except ImportError as e:
        end(1, f"{e}: python3 -m pip install {'tensorboard' if o.tensorboard else 'wandb'}")
    at = None
    try:
        for lines, written in batches(path, o.follow):
            # The log has no time of day: its first lines end when it was last written, and each
            # step is as much later than the one before it as it took.
            if at is None:
                at = written - sum(values.get("ms", 0) for _, values in lines) / 1000
            for step, values in lines:
                at += values.get("ms", 0) / 1000
                add(step, values, at)
            flush()
    except KeyboardInterrupt:
        pass
    except OSError as e:
        end(1, f"{path}: {e.strerror}")
    close()


main()
