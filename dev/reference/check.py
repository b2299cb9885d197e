#!/usr/bin/env python3
"""check.py: is what --dump wrote what transformers computes in float64? All families, packed rows, too.

usage: python3 dev/reference/check.py MODEL DUMP      (needs numpy, PyTorch and transformers 5)

MODEL is a directory with config.json and weights. Prints max |a - b| / max |b| of the loss, the logits
and each gradient, b being transformers'; exits with 1 if one is above 2e-5. Of a gradient below 1 % of
the largest, max |b| is that 1 %: the biases of keys have no gradient but rounding.
"""
import json
import sys

from reference import safetensors_read, step_transformers

path, dump = sys.argv[1], safetensors_read(sys.argv[2])
with open(path + "/config.json", encoding="utf-8") as f:
    family = json.load(f)["model_type"]
loss, logits, grads = step_transformers(path, family, dump)
theirs = {"loss": loss.view(1), "logits": logits, **{"grad." + n: g for n, g in grads.items()}}
others = set(theirs) ^ set(dump) - {"tokens", "targets", "begins"}
if others:
    sys.exit("in one of the two only: " + ", ".join(sorted(others)))
least = max(g.abs().max() for g in grads.values()) / 100
worst = 0.0
for name, b in theirs.items():
    scale = b.abs().max().clamp(min=least if name.startswith("grad.") else 0)
    error = ((b - b.new_tensor(dump[name])).abs().max() / scale).item()
    worst = error if not error <= worst else worst
    print(f"{error:.1e} {name}")
sys.exit(not worst <= 2e-5)
