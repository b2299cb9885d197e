#!/usr/bin/env python3
"""The CPU training step of tide.c and the same step in eager PyTorch, in turn.

GPT-2 124M in fp32, random weights and tokens, AdamW on all of it, clipping by the global norm.
Each round starts our trainer, drops its first steps and reads the times of the next ones from its
log, and does the same number of steps in PyTorch.
"""
import argparse
import array
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from make_llmc_inputs import CHANNELS, CONTEXT, HEADS, LAYERS, VOCAB, write_tokens

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0
TOKENS = 1 << 16


def all_cpus():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def positive(text):
    if int(text) < 1:
        raise ValueError
    return int(text)


parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--threads", type=positive, default=all_cpus(), help="of both (all CPUs)")
parser.add_argument("--rounds", type=positive, default=5, help="(5)")
parser.add_argument("--steps", type=positive, default=5, help="measured in a round (5)")
parser.add_argument("--warmup", type=positive, default=2, help="dropped before them (2)")
parser.add_argument("--batch", type=positive, default=4, help="sequences (4)")
parser.add_argument("--seq", type=positive, default=64, help="tokens per sequence (64)")
parser.add_argument("--trainer", default=os.path.join(ROOT, "train_gpt2"), help="our trainer")
args = parser.parse_args()
if args.seq > CONTEXT or args.batch * args.seq >= TOKENS:
    parser.error("--seq is at most %d, and --batch times --seq below %d" % (CONTEXT, TOKENS))
if not os.access(args.trainer, os.X_OK):
    parser.error("%s is not there: make train_gpt2" % args.trainer)
for name in "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS":  # before torch loads
    os.environ[name] = str(args.threads)

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(CHANNELS), nn.LayerNorm(CHANNELS)
        self.qkv = nn.Linear(CHANNELS, 3 * CHANNELS)
        self.attproj = nn.Linear(CHANNELS, CHANNELS)
        self.fc = nn.Linear(CHANNELS, 4 * CHANNELS)
        self.fcproj = nn.Linear(4 * CHANNELS, CHANNELS)

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, HEADS, C // HEADS).transpose(1, 2)
                   for part in self.qkv(x).split(C, dim=2))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(T, T, dtype=torch.bool).triu(1)
            scores = q @ k.transpose(2, 3) * (C // HEADS) ** -0.5
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.attproj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.fcproj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, CHANNELS), nn.Embedding(CONTEXT, CHANNELS)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(CHANNELS)
        for name, p in self.named_parameters():  # the first values that our trainer takes
            if p.dim() == 2:
                residual = "proj" in name
                nn.init.normal_(p, 0, 0.02 * ((2 * LAYERS) ** -0.5 if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is tied
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def adamw(model):
    """The optimizer, and whether it is the fused one, which PyTorch has on CPUs since 2.4."""
    for extra in {"fused": True}, {}:
        groups = [{"params": [p for p in model.parameters() if p.dim() == 2]},
                  {"params": [p for p in model.parameters() if p.dim() != 2], "weight_decay": 0.0}]
        try:
            optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS,
                                          weight_decay=WEIGHT_DECAY, **extra)
            return optimizer, bool(extra)
        except (TypeError, RuntimeError, ValueError):
            if not extra:
                raise


class Theirs:
    def __init__(self, path):
        data = array.array("H")
        with open(path, "rb") as f:
            f.seek(1024)
            data.frombytes(f.read())
        self.data = torch.tensor(data.tolist(), dtype=torch.int64)
        self.model = GPT2()
        self.optimizer, self.fused = adamw(self.model)
        self.at = 0

    def step(self):
        n = args.batch * args.seq
        if self.at + n + 1 > len(self.data):
            self.at = 0
        inputs = self.data[self.at:self.at + n].view(args.batch, args.seq)
        targets = self.data[self.at + 1:self.at + n + 1].view(args.batch, args.seq)
        self.at += n
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model(inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.item()

    def run(self):
        """One round: milliseconds per step, and the loss of the very first step."""
        ms, losses = [], []
        for _ in range(args.warmup + args.steps):
            start = time.perf_counter()
            losses.append(self.step())
            ms.append(1e3 * (time.perf_counter() - start))
        return ms[args.warmup:], losses[0]


class Ours:
    def __init__(self, path, out):
        self.out = out
        self.command = [
            args.trainer, "--model", "gpt2", "--data", path, "--out", out, "--eval-every", "0",
            "--batch", args.batch, "--seq", args.seq, "--threads", args.threads, "--lr", LR,
            "--schedule", "constant", "--warmup", 0, "--beta1", BETAS[0], "--beta2", BETAS[1],
            "--eps", EPS, "--weight-decay", WEIGHT_DECAY, "--clip", CLIP,
            # Never reached: it is ended before it would write a checkpoint of 2 GB.
            "--steps", args.warmup + args.steps + 1000]

    def run(self):
        shutil.rmtree(self.out, ignore_errors=True)
        steps, text, enough = args.warmup + args.steps, [], False
        with subprocess.Popen([str(x) for x in self.command], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, universal_newlines=True) as process:
            try:
                for line in process.stdout:  # a step's line is in the log when the next one ends
                    text.append(line)
                    if line.startswith("step %d/" % (steps + 1)):
                        enough = True
                        break
            finally:
                process.kill()
        if not enough:
            sys.exit("".join(text) + "our trainer did not run")
        with open(os.path.join(self.out, "log.jsonl")) as f:
            log = [json.loads(line) for line in f.readlines()[:steps]]
        return [x["ms"] for x in log[args.warmup:]], log[0]["loss"]


def show(name, rounds):
    ms = [x for times in rounds for x in times]
    print("%-8s median %8.1f ms per step (%.1f .. %.1f), %.0f tokens/s" % (
        name, statistics.median(ms), min(ms), max(ms),
        1e3 * args.batch * args.seq / statistics.median(ms)))


def main():
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "tokens.bin")
        write_tokens(path, TOKENS, 2)
        theirs = Theirs(path)
        sides = [("tide.c", Ours(path, os.path.join(tmp, "out")), []), ("PyTorch", theirs, [])]
        build = dict(x.strip().split("=", 1) for x in
                     torch.__config__.show().split("Build settings:")[-1].split(",") if "=" in x)
        print("GPT-2 124M, B=%d T=%d, %d threads, %d rounds of %d steps (and %d dropped)" % (
            args.batch, args.seq, args.threads, args.rounds, args.steps, args.warmup))
        print("PyTorch %s, BLAS %s, %s attention, %s AdamW, %.2f M parameters" % (
            torch.__version__, build.get("BLAS_INFO", "unknown"),
            "scaled_dot_product" if HAS_SDPA else "plain", "fused" if theirs.fused else "plain",
            1e-6 * sum(p.numel() for p in theirs.model.parameters())))
        if build.get("BLAS_INFO") == "generic":
            print("note: this PyTorch multiplies with the system's libblas.so.3; a slow one there "
                  "(the reference BLAS) makes the comparison worthless")
        losses = {}
        for i in range(args.rounds):  # who goes first changes with the round
            for name, side, rounds in sides if i % 2 == 0 else sides[::-1]:
                ms, loss = side.run()
                rounds.append(ms)
                losses.setdefault(name, loss)
                print("round %d: %-8s" % (i + 1, name), " ".join("%.1f" % x for x in ms), "ms",
                      flush=True)
    if abs(losses["tide.c"] - losses["PyTorch"]) > 0.3:
        sys.exit("the first losses differ, %(tide.c).3f and %(PyTorch).3f: not the same model" %
                 losses)
    for name, _, rounds in sides:
        show(name, rounds)
    # The ratio is that of the two medians of a round, so that a machine that is slower for a while
    # changes both sides of it.
    ratios = [statistics.median(b) / statistics.median(a) for a, b in zip(sides[0][2], sides[1][2])]
    print("PyTorch takes %.2f times as long as tide.c (median of %d rounds; %.2f .. %.2f)" % (
        statistics.median(ratios), args.rounds, min(ratios), max(ratios)))


if __name__ == "__main__":
    main()
