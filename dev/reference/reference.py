#!/usr/bin/env python3
"""reference.py: an independent float64 GPT-2 / OPT, from the papers' equations, in plain PyTorch.

It writes and checks the fixtures that the C programs are held against; README.md beside this file
describes their format. Needs numpy and PyTorch (1.13 or newer); --check-transformers also needs
transformers. Everything is seeded, everything runs on the CPU in a few seconds.

    reference.py --write                write fixtures/NAME/ for every case
    reference.py --check                recompute everything and compare with the committed files
    reference.py --check-transformers   hold this model against transformers' own
    reference.py --study                how large fp32 rounding is, how large the effect of mistakes

The model is pre-LN GPT-2 (Radford et al. 2019) and OPT (Zhang et al. 2022): learned positions,
  h = x + Attention(LN(x)),  x' = h + MLP(LN(h)),  logits = LN(x) head^T,
or OPT-350M, which differs: tokens are projected up,
  h = LN(x + Attention(x)),  x' = LN(h + MLP(h)),  logits = (x projected down) head^T,
with GELU in the tanh form of Hendrycks and Gimpel 2016. The optimizer is AdamW (Loshchilov and
Hutter 2019, algorithm 2). The parameters live in a dict under their Hugging Face names and in that
layout, so gradients and updated parameters come out named and laid out the same way.
"""
import argparse
import json
import math
import os
import struct
import sys

import numpy as np
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")

# L layers, NH heads, C channels, F width of the MLP, V vocabulary, ctx rows of the position table;
# E width of the embeddings, if not C; B sequences per micro-batch, T tokens each. `stream` scales
# what enters the residual stream: where it is small, layer norm's epsilon matters. `packed`: a row
# holds several documents, and a third of the targets, -1, are not trained.
BASE = dict(family="gpt2", act="gelu_new", tied=True, E=None, stream=1.0, packed=False, accum=1,
            steps=10, warmup=3, lr=1e-2, min_lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-3, weight_decay=0.1)
CASES = {
    # the plain case: every length is equal to its table, the head is tied
    "gpt2": dict(BASE, seed=1, L=2, NH=2, C=16, F=64, V=61, ctx=12, B=2, T=12, clip=1.85),
    # nothing is a multiple of anything: head size 9, V crosses the padding to 128, T < ctx
    "gpt2-odd": dict(BASE, seed=2, L=1, NH=3, C=27, F=108, V=131, ctx=17, B=3, T=15, clip=2.9,
                     beta2=0.999),
    # ReLU, a head of its own, an MLP that is not 4 C wide, a small residual stream
    "gpt2-untied": dict(BASE, seed=3, L=2, NH=4, C=16, F=40, V=50, ctx=16, B=2, T=12, clip=4.0,
                        act="relu", tied=False, stream=0.1, beta1=0.8),
    # OPT: ReLU, separate q, k, v, positions start at row 2 of their table
    "opt": dict(BASE, seed=4, L=2, NH=2, C=16, F=64, V=67, ctx=12, B=2, T=10, clip=2.75,
                family="opt", act="relu"),
    # OPT-350M: layers normalise after the sums, embeddings are narrower and are projected
    "opt-350m": dict(BASE, seed=7, L=2, NH=2, C=16, F=40, V=67, ctx=12, B=2, T=10, clip=2.75,
                     family="opt", act="relu", E=8),
    # longer than the tiles of a blocked attention
    "gpt2-long": dict(BASE, seed=5, L=1, NH=1, C=8, F=32, V=29, ctx=150, B=1, T=150, clip=0.68),
    # two micro-batches per step
    "gpt2-accum": dict(BASE, seed=6, L=1, NH=2, C=12, F=48, V=40, ctx=10, B=2, T=9, clip=1.6,
                       accum=2),
    # several documents in a row
    "gpt2-packed": dict(BASE, seed=8, L=2, NH=2, C=16, F=64, V=61, ctx=40, B=2, T=36, clip=1.6,
                        packed=True),
}
TRAINING_KEYS = ("seed", "B", "T", "accum", "steps", "lr", "min_lr", "warmup", "beta1", "beta2",
                 "eps", "weight_decay", "clip")

# ---------------------------------------------------------------------------------------------
# safetensors: 8 bytes header length, JSON header, raw little-endian data

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4"}


def widest_first(tensors):  # keeps F64 aligned; otherwise the order stays
    return sorted(tensors.items(), key=lambda x: -x[1].dtype.itemsize)


def safetensors_write(path, tensors):
    tensors = widest_first(tensors)
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, a in tensors:
        dtype = [k for k, v in DTYPES.items() if np.dtype(v) == a.dtype][0]
        header[name] = {"dtype": dtype, "shape": list(a.shape),
                        "data_offsets": [end, end + a.nbytes]}
        end += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, a in tensors:
            f.write(np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<")).tobytes())


def safetensors_read(path):
    with open(path, "rb") as f:
        data = f.read()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:start]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            values = np.frombuffer(data[start + a:start + b], DTYPES[t["dtype"]])
            out[name] = values.reshape(t["shape"])
    return out

# ---------------------------------------------------------------------------------------------
# The model. Each piece is a small function, so that the study can break one at a time.


def layer_norm(x, w, b):  # over the last dimension, biased variance
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + 1e-5) * w + b


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def relu(x):
    return torch.where(x > 0, x, torch.zeros_like(x))


def causal_mask(T):  # (T, T), true where row t may not look at column s
    t = torch.arange(T)
    return t[None, :] > t[:, None]


def other_documents(begins):  # (B, T) -> (B, 1, T, T), true where s is of another document than t
    return (begins[:, None, :, None] != begins[:, None, None, :])


def attention(q, k, v, heads, begins=None):  # (B, T, C) each
    B, T, C = q.shape
    q, k, v = (x.reshape(B, T, heads, C // heads).permute(0, 2, 1, 3) for x in (q, k, v))
    score = q @ k.transpose(-1, -2) / math.sqrt(C // heads)  # (B, NH, T, T)
    score = score.masked_fill(causal_mask(T), -math.inf)
    if begins is not None:
        score = score.masked_fill(other_documents(begins), -math.inf)
    att = torch.exp(score - score.max(-1, keepdim=True)[0])
    att = att / att.sum(-1, keepdim=True)
    return (att @ v).permute(0, 2, 1, 3).reshape(B, T, C)


def residual(x, y):
    return x + y


def lookup(wte, wpe, tokens, offset, begins=None):  # OPT's positions start with `offset` unused rows
    places = torch.arange(tokens.shape[1]) - (0 if begins is None else begins)
    return wte[tokens] + wpe[places + offset]


def linear(p, name, x, family):  # GPT-2 keeps weights as (C, OC), OPT as (OC, C)
    w = p[name + ".weight"]
    return x @ (w if family == "gpt2" else w.t()) + p[name + ".bias"]


def forward(p, c, tokens, begins=None):
    """tokens (B, T) -> logits (B, T, V). p: parameters under their Hugging Face names. begins (B, T):
    where in its row each token's document begins."""
    gpt2 = c["family"] == "gpt2"
    act = relu if c["act"] == "relu" else gelu

    def norm(name, x):
        return layer_norm(x, p[name + ".weight"], p[name + ".bias"])
    top = "transformer." if gpt2 else "model.decoder."
    wte = p[top + ("wte.weight" if gpt2 else "embed_tokens.weight")]
    wpe = p[top + ("wpe.weight" if gpt2 else "embed_positions.weight")]
    post = c["E"] is not None
    if post:  # OPT-350M
        wte = wte @ p[top + "project_in.weight"].t()
    x = lookup(wte, wpe, tokens, 0 if gpt2 else 2, begins)
    for i in range(c["L"]):
        h = top + ("h.%d." if gpt2 else "layers.%d.") % i
        if gpt2:
            qkv = linear(p, h + "attn.c_attn", norm(h + "ln_1", x), "gpt2").split(c["C"], -1)
            y = linear(p, h + "attn.c_proj", attention(*qkv, c["NH"], begins), "gpt2")
            ln_2, fc, proj = "ln_2", "mlp.c_fc", "mlp.c_proj"
        else:
            z = x if post else norm(h + "self_attn_layer_norm", x)
            qkv = [linear(p, h + "self_attn.%s_proj" % n, z, "opt") for n in "qkv"]
            y = linear(p, h + "self_attn.out_proj", attention(*qkv, c["NH"], begins), "opt")
            ln_2, fc, proj = "final_layer_norm", "fc1", "fc2"
        x = residual(x, y)
        if post:
            x = norm(h + "self_attn_layer_norm", x)
            z = act(linear(p, h + fc, x, c["family"]))
            x = norm(h + ln_2, residual(x, linear(p, h + proj, z, c["family"])))
            continue
        z = act(linear(p, h + fc, norm(h + ln_2, x), c["family"]))
        x = residual(x, linear(p, h + proj, z, c["family"]))
    if post:
        wte = p[top + "embed_tokens.weight"]
        x = x @ p[top + "project_out.weight"].t()
        return x @ (wte if c["tied"] else p["lm_head.weight"]).t()
    x = norm(top + ("ln_f" if gpt2 else "final_layer_norm"), x)
    return x @ (wte if c["tied"] else p["lm_head.weight"]).t()


def cross_entropy(logits, targets):  # mean over all positions with a target
    picked = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return (torch.logsumexp(logits, -1) - picked)[targets >= 0].mean()


def step_gradients(p, c, tokens, targets, begins=None):
    """-> loss, logits, {name: gradient}. The batch goes through as one."""
    p = {n: t.detach().requires_grad_(True) for n, t in p.items()}
    logits = forward(p, c, tokens, begins)
    loss = cross_entropy(logits, targets)
    loss.backward()
    grads = {n: t.grad if t.grad is not None else torch.zeros_like(t) for n, t in p.items()}
    return loss.detach(), logits.detach(), grads

# ---------------------------------------------------------------------------------------------
# The optimizer


def learning_rate(c, step):
    """A line from lr / warmup up to lr, then half a cosine down to min_lr at the last step
    (Loshchilov and Hutter 2017, equation 5). step counts from 1."""
    if step <= c["warmup"]:
        return c["lr"] * step / c["warmup"]
    x = (step - c["warmup"]) / (c["steps"] - c["warmup"])
    return c["min_lr"] + 0.5 * (1 + math.cos(math.pi * x)) * (c["lr"] - c["min_lr"])


def clip_scale(norm, clip):
    return clip / norm if norm > clip else 1.0


def decays(name, t):
    return t.dim() >= 2


def adamw(c, t, lr, p, g, m, v, wd):  # t counts from 1; m and v change in place
    m.mul_(c["beta1"]).add_((1 - c["beta1"]) * g)
    v.mul_(c["beta2"]).add_((1 - c["beta2"]) * g * g)
    mhat, vhat = m / (1 - c["beta1"] ** t), v / (1 - c["beta2"] ** t)
    return p - lr * (mhat / (torch.sqrt(vhat) + c["eps"]) + wd * p)


def train(p, c, tokens, targets, begins=None):
    """-> losses, gradient norms before clipping, learning rates, final parameters."""
    p = dict(p)
    m, v = ({n: torch.zeros_like(t) for n, t in p.items()} for _ in range(2))
    losses, norms, rates = [], [], []
    for s in range(c["steps"]):
        loss, grads = 0.0, None
        for a in range(c["accum"]):  # equal micro-batches: the mean of means is the mean
            rows = slice(a * c["B"], (a + 1) * c["B"])
            one, _, g = step_gradients(p, c, tokens[s, rows], targets[s, rows],
                                       None if begins is None else begins[s, rows])
            loss += one.item() / c["accum"]
            grads = {n: (grads[n] if grads else 0) + g[n] / c["accum"] for n in g}
        norm = math.sqrt(sum((g.double() ** 2).sum().item() for g in grads.values()))
        scale, lr = clip_scale(norm, c["clip"]), learning_rate(c, s + 1)
        for n in p:
            wd = c["weight_decay"] if decays(n, p[n]) else 0.0
            p[n] = adamw(c, s + 1, lr, p[n], grads[n] * scale, m[n], v[n], wd)
        losses.append(loss), norms.append(norm), rates.append(lr)
    return losses, norms, rates, p

# ---------------------------------------------------------------------------------------------
# The cases


def parameter_shapes(c):
    """Hugging Face name -> (shape, kind, fan-in), in file order."""
    C, F, V, out = c["C"], c["F"], c["V"], {}
    E = c["E"] or C

    def add_linear(name, cin, cout, kind):
        out[name + ".weight"] = ((cin, cout) if c["family"] == "gpt2" else (cout, cin), kind, cin)
        out[name + ".bias"] = ((cout,), kind + "-bias", cin)

    def add_norm(name):
        out[name + ".weight"] = ((C,), "norm", C)
        out[name + ".bias"] = ((C,), "bias", C)
    if c["family"] == "gpt2":
        out["transformer.wte.weight"] = ((V, C), "wte", C)
        out["transformer.wpe.weight"] = ((c["ctx"], C), "wpe", C)
        for i in range(c["L"]):
            h = "transformer.h.%d." % i
            add_norm(h + "ln_1")
            add_linear(h + "attn.c_attn", C, 3 * C, "inner")
            add_linear(h + "attn.c_proj", C, C, "stream")
            add_norm(h + "ln_2")
            add_linear(h + "mlp.c_fc", C, F, "inner")
            add_linear(h + "mlp.c_proj", F, C, "stream")
        add_norm("transformer.ln_f")
    else:
        out["model.decoder.embed_tokens.weight"] = ((V, E), "wte", E)
        out["model.decoder.embed_positions.weight"] = ((c["ctx"] + 2, C), "wpe", C)
        for i in range(c["L"]):
            h = "model.decoder.layers.%d." % i
            for n in "kvq":
                add_linear(h + "self_attn.%s_proj" % n, C, C, "inner")
            add_linear(h + "self_attn.out_proj", C, C, "stream")
            add_norm(h + "self_attn_layer_norm")
            add_linear(h + "fc1", C, F, "inner")
            add_linear(h + "fc2", F, C, "stream")
            add_norm(h + "final_layer_norm")
        if E == C:
            add_norm("model.decoder.final_layer_norm")
        else:
            out["model.decoder.project_in.weight"] = ((C, E), "inner", E)
            out["model.decoder.project_out.weight"] = ((E, C), "inner", C)
    if not c["tied"]:
        out["lm_head.weight"] = ((V, E), "inner", E)
    return out


def make_weights(c, rng):
    """fp32 values at which every term of every equation counts: attention far from uniform,
    activations in their curved part, no bias zero, no norm weight one."""
    out = {}
    for name, (shape, kind, fan_in) in parameter_shapes(c).items():
        stream = c["stream"] if kind in ("stream", "stream-bias", "wpe") or \
            (kind == "wte" and not c["tied"]) else 1.0
        if kind == "norm":
            a = 1 + 0.2 * rng.uniform(-1, 1, shape)
        elif kind.endswith("bias"):
            a = 0.1 * stream * rng.uniform(-1, 1, shape)
        elif kind in ("wte", "wpe"):
            a = (0.3 if kind == "wte" else 0.2) * stream * rng.standard_normal(shape)
        else:
            a = 1.2 / math.sqrt(fan_in) * stream * rng.standard_normal(shape)
        if kind == "wpe" and c["family"] == "opt":
            a[:2] = 0  # never used, so a program need not keep them
        out[name] = a.astype(np.float32)
    return out


def make_tokens(c, rng, shape):
    """tokens and targets (*shape, T): low ids are more frequent, and the last id always occurs. If
    packed, also begins: documents of 1 to 12 tokens, other ones in every row."""
    ids = (c["V"] * rng.uniform(0, 1, shape + (c["T"] + 1,)) ** 1.5).astype(np.int32)
    ids.reshape(-1, c["T"] + 1)[0, 1] = c["V"] - 1
    if not c["packed"]:
        return ids[..., :-1].copy(), ids[..., 1:].copy()
    targets, begins = ids[..., 1:].copy(), np.zeros(shape + (c["T"],), np.int32)
    for row in begins.reshape(-1, c["T"]):
        for t in range(1, c["T"]):
            row[t] = t if t - row[t - 1] == 12 or rng.uniform() < 0.15 else row[t - 1]
    trained = rng.uniform(0, 1, targets.shape) < 2 / 3
    if len(shape) > 1:  # every step trains as many
        trained = np.broadcast_to(trained[:1], targets.shape)
    return ids[..., :-1].copy(), np.where(trained, targets, -1).astype(np.int32), begins


def make_config(c):
    """config.json: what transformers' AutoModelForCausalLM.from_pretrained wants to see."""
    if c["family"] == "gpt2":
        return dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_layer=c["L"],
                    n_head=c["NH"], n_embd=c["C"], n_positions=c["ctx"], vocab_size=c["V"],
                    n_inner=None if c["F"] == 4 * c["C"] else c["F"], activation_function=c["act"],
                    layer_norm_epsilon=1e-5, tie_word_embeddings=c["tied"], resid_pdrop=0.0,
                    embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return dict(model_type="opt", architectures=["OPTForCausalLM"], num_hidden_layers=c["L"],
                num_attention_heads=c["NH"], hidden_size=c["C"], word_embed_proj_dim=c["E"] or c["C"],
                max_position_embeddings=c["ctx"], vocab_size=c["V"], ffn_dim=c["F"],
                activation_function=c["act"], do_layer_norm_before=c["E"] is None, dropout=0.0,
                tie_word_embeddings=c["tied"], pad_token_id=None, bos_token_id=0, eos_token_id=0)


def as_torch(weights, dtype=torch.float64):
    return {n: torch.from_numpy(np.array(a)).to(dtype) for n, a in weights.items()}


def inputs(c):
    """-> weights, dump batch, training batches: all that is random, in a fixed order."""
    rng = np.random.RandomState(c["seed"])  # its stream is frozen: the same in every numpy
    return (make_weights(c, rng), make_tokens(c, rng, (c["B"],)),
            make_tokens(c, rng, (c["steps"], c["accum"] * c["B"])))


def to_long(batch):
    return [torch.from_numpy(a).long() for a in batch]


def f32(t):
    return t.detach().numpy().astype(np.float32)


def compute(c):
    """-> the contents of model.safetensors, dump.safetensors and train.safetensors."""
    weights, batch, batches = inputs(c)
    p = as_torch(weights)
    loss, logits, grads = step_gradients(p, c, *to_long(batch))
    dump = {"tokens": batch[0], "targets": batch[1], "loss": np.array([loss.item()]),
            "logits": f32(logits)}
    if c["packed"]:
        dump["begins"] = batch[2]
    dump.update({"grad." + n: f32(g) for n, g in grads.items()})
    losses, norms, rates, final = train(p, c, *to_long(batches))
    clipped = sum(n > c["clip"] for n in norms)
    assert 2 <= clipped <= c["steps"] - 2, "clipping must act in some steps only: %s" % norms
    assert min(abs(n / c["clip"] - 1) for n in norms) > 0.01, "too close to clip: %s" % norms
    trained = {"tokens": batches[0], "targets": batches[1], "losses": np.array(losses),
               "grad_norm": np.array(norms), "lr": np.array(rates)}
    if c["packed"]:
        trained["begins"] = batches[2]
    trained.update({"param." + n: f32(t) for n, t in final.items()})
    return weights, dump, trained


def case_json(name, c):
    return dict({"name": name}, **{k: c[k] for k in TRAINING_KEYS})


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def write_case(name, c):
    path = os.path.join(HERE, name)
    os.makedirs(path, exist_ok=True)
    weights, dump, trained = compute(c)
    safetensors_write(os.path.join(path, "model.safetensors"), weights)
    safetensors_write(os.path.join(path, "dump.safetensors"), dump)
    safetensors_write(os.path.join(path, "train.safetensors"), trained)
    write_json(os.path.join(path, "config.json"), make_config(c))
    write_json(os.path.join(path, "case.json"), case_json(name, c))
    print("wrote %-12s loss %.6f -> %.6f, norms %.3f to %.3f, clip %.2f" % (
        name, dump["loss"][0], trained["losses"][-1], trained["grad_norm"].min(),
        trained["grad_norm"].max(), c["clip"]))

# ---------------------------------------------------------------------------------------------
# Checks


def error(a, b):
    """max |a - b| / max |b|, the measure that compare uses; b is the reference."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))


def check_case(name, c):
    path, bad = os.path.join(HERE, name), []
    for file, new in zip(("model", "dump", "train"), compute(c)):
        old = safetensors_read(os.path.join(path, file + ".safetensors"))
        if list(old) != [n for n, _ in widest_first(new)]:
            bad.append(file + ": other tensors")
            continue
        for n in new:
            same = old[n].shape == new[n].shape and old[n].dtype == new[n].dtype
            exact = file == "model" or n in ("tokens", "targets", "begins", "lr")
            worst = np.abs(old[n].astype(np.float64) - new[n]).max() if same else math.inf
            # twice the rounding to fp32; the floor: gradients that are zero in exact arithmetic
            if worst > (0 if exact else 1.2e-7 * np.abs(new[n]).max() + 1e-12):
                bad.append("%s: %s differs by %.3g" % (file, n, worst))
    for file, new in (("config", make_config(c)), ("case", case_json(name, c))):
        with open(os.path.join(path, file + ".json")) as f:
            if json.load(f) != new:
                bad.append(file + ".json differs")
    # AdamW once more, by the optimizer that PyTorch has
    weights, _, batches = inputs(c)
    tokens, targets, *begins = to_long(batches)
    p = {n: t.requires_grad_(True) for n, t in as_torch(weights).items()}
    groups = [{"params": [t for t in p.values() if (t.dim() >= 2) == decay],
               "weight_decay": c["weight_decay"] if decay else 0.0} for decay in (True, False)]
    opt = torch.optim.AdamW(groups, betas=(c["beta1"], c["beta2"]), eps=c["eps"])
    for s in range(c["steps"]):
        opt.zero_grad()
        rows = begins[0][s] if begins else None  # whole global batch at once
        cross_entropy(forward(p, c, tokens[s], rows), targets[s]).backward()
        torch.nn.utils.clip_grad_norm_(list(p.values()), c["clip"])
        for group in opt.param_groups:
            group["lr"] = learning_rate(c, s + 1)
        opt.step()
    trained = safetensors_read(os.path.join(path, "train.safetensors"))
    for n in p:  # PyTorch clips to clip / (norm + 1e-6), hence not closer
        worst = np.abs(p[n].detach().numpy() - trained["param." + n]).max()
        if worst > 1e-6:
            bad.append("torch.optim.AdamW: %s differs by %.3g" % (n, worst))
    print("%s %s" % ("FAIL" if bad else "ok", name), *bad, sep="\n  " if bad else "")
    return not bad


def check_transformers(name, c):
    """Logits, loss, gradients and the saved files against transformers, in float64."""
    import transformers
    path = os.path.join(HERE, name)
    try:
        # OPT's eager attention computes its softmax in fp32 whatever the type; sdpa does not
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, attn_implementation="sdpa" if c["family"] == "opt" else "eager").double().train()
    except Exception as e:
        print("FAIL %s: %s" % (name, e))
        return False
    dump = safetensors_read(os.path.join(path, "dump.safetensors"))
    tokens, targets = to_long((dump["tokens"].copy(), dump["targets"].copy()))
    documents, begins = {}, None
    if "begins" in dump:
        begins, place = to_long((dump["begins"].copy(),))[0], torch.arange(tokens.shape[1])
        seen = (place[None, :] <= place[:, None]) & (place >= begins[:, :, None])  # (B, T, T)
        hidden = torch.full(seen.shape, -1e300, dtype=torch.float64).masked_fill(seen, 0)
        documents = {"position_ids": place - begins, "attention_mask": hidden[:, None]}
    logits = model(input_ids=tokens, **documents).logits
    loss = torch.nn.functional.cross_entropy(logits.view(-1, c["V"]), targets.view(-1),
                                             ignore_index=-1)
    loss.backward()
    _, mine, grads = step_gradients(as_torch(inputs(c)[0]), c, tokens, targets, begins)
    worst, names = error(logits.detach(), mine), set()
    floor = max(g.abs().max().item() for g in grads.values()) * 1e-3
    worst_grad = 0.0
    for n, t in model.named_parameters():
        names.add(n)
        d = (t.grad - grads[n]).abs().max().item()
        worst_grad = max(worst_grad, d / max(grads[n].abs().max().item(), floor))
    good = names == set(grads) and worst < 1e-12 and worst_grad < 1e-11 \
        and abs(loss.item() - dump["loss"][0]) < 1e-12
    print("%s %-12s logits %.1e, loss %.1e, gradients %.1e" % (
        "ok" if good else "FAIL", name, worst, abs(loss.item() - dump["loss"][0]), worst_grad))
    return good

# ---------------------------------------------------------------------------------------------
# The study: rounding noise, and mistakes


class NormWithout(torch.autograd.Function):
    """Layer norm whose backward lacks a term: dx = (g - mean(g) - xhat mean(g xhat)) / sigma."""
    @staticmethod
    def forward(ctx, x, w, b, term):
        sigma = torch.sqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5)
        xhat = (x - x.mean(-1, keepdim=True)) / sigma
        ctx.save_for_backward(xhat, sigma, w)
        ctx.term = term
        return xhat * w + b

    @staticmethod
    def backward(ctx, dy):
        xhat, sigma, w = ctx.saved_tensors
        g = dy * w
        dx = g
        if ctx.term != "mean":
            dx = dx - g.mean(-1, keepdim=True)
        if ctx.term != "xhat":
            dx = dx - xhat * (g * xhat).mean(-1, keepdim=True)
        lead = tuple(range(dy.dim() - 1))
        return dx / sigma, (dy * xhat).sum(lead), dy.sum(lead), None


class GeluWithout(torch.autograd.Function):
    """GELU whose derivative forgets that the argument of tanh is cubic."""
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return gelu_right(x)

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        t = torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3))
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * math.sqrt(2 / math.pi))


gelu_right, linear_right, norm_right = gelu, linear, layer_norm


def linear_no_bias_gradient(which):
    def f(p, name, x, family):
        if which in name:
            p = dict(p, **{name + ".bias": p[name + ".bias"].detach()})
        return linear_right(p, name, x, family)
    return f


def norm_eps(eps, which):
    """Another epsilon in the norms whose index is in `which` (counted through one forward)."""
    count = [0]

    def f(x, w, b):
        i, count[0] = count[0], count[0] + 1
        if not which(i):
            return norm_right(x, w, b)
        mean = x.mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps) * w + b
    return f


def mask_leak(T):  # the row before the last sees the last column
    mask = np.triu(np.ones((T, T), bool), 1)
    mask[T - 2, T - 1] = False
    return torch.from_numpy(mask)


def mask_short(T):  # the last row does not see the first column
    mask = np.triu(np.ones((T, T), bool), 1)
    mask[T - 1, 0] = True
    return torch.from_numpy(mask)


def forward_mutants(c):
    norms = 2 * c["L"] + 1
    out = {
        "bias gradient of fc missing": ("linear", linear_no_bias_gradient("fc")),
        "bias gradient of qkv missing": ("linear", linear_no_bias_gradient(
            "c_attn" if c["family"] == "gpt2" else "v_proj")),
        "LN backward without mean(g)": ("layer_norm", lambda *a: NormWithout.apply(*a, "mean")),
        "LN backward without xhat term": ("layer_norm", lambda *a: NormWithout.apply(*a, "xhat")),
        "mask: one column too many, one row": ("causal_mask", mask_leak),
        "mask: one column too few, one row": ("causal_mask", mask_short),
        "GELU by erf": ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
        "GELU backward without the cubic": ("gelu", GeluWithout.apply),
        "LN epsilon 0, all": ("layer_norm", norm_eps(0, lambda i: True)),
        "LN epsilon 1e-6, all": ("layer_norm", norm_eps(1e-6, lambda i: True)),
        "LN epsilon 0, ln_f only": ("layer_norm", norm_eps(0, lambda i: i == norms - 1)),
        "no residual": ("residual", lambda x, y: y),
        "lookup's gradient missing": ("lookup", lambda wte, wpe, t, o, b=None: (
            wte[t].detach() + wpe[torch.arange(t.shape[1]) + o])),
        "loss over B*T - 1 tokens": ("cross_entropy", lambda l, t: cross_entropy_right(l, t)
                                     * t.numel() / (t.numel() - 1)),
    }
    if c["act"] != "gelu_new":
        out = {k: v for k, v in out.items() if "GELU" not in k}
    if c["family"] == "opt":
        out["positions start at row 0"] = ("lookup", lambda wte, wpe, t, o, b=None: (
            wte[t] + wpe[torch.arange(t.shape[1])]))
    return out


cross_entropy_right, adamw_right, rate_right = cross_entropy, adamw, learning_rate


def adamw_variant(first=True, second=True, eps_inside=False, l2=False, new_p=False, eps=None):
    def f(c, t, lr, p, g, m, v, wd):
        g = g + wd * p if l2 else g
        m.mul_(c["beta1"]).add_((1 - c["beta1"]) * g)
        v.mul_(c["beta2"]).add_((1 - c["beta2"]) * g * g)
        mhat = m / (1 - c["beta1"] ** t) if first else m
        vhat = v / (1 - c["beta2"] ** t) if second else v
        e = c["eps"] if eps is None else eps
        u = mhat / (torch.sqrt(vhat + e * e) if eps_inside else torch.sqrt(vhat) + e)
        if new_p:
            p = p - lr * u
            return p - lr * wd * p
        return p - lr * (u + (0 if l2 else wd) * p)
    return f


TRAIN_MUTANTS = {
    "no bias correction of m": ("adamw", adamw_variant(first=False)),
    "no bias correction of v": ("adamw", adamw_variant(second=False)),
    "bias correction one step late": ("adamw", lambda c, t, *a: adamw_right(c, t + 1, *a)),
    "epsilon inside the root": ("adamw", adamw_variant(eps_inside=True)),
    "epsilon 1e-8": ("adamw", adamw_variant(eps=1e-8)),
    "L2 instead of decoupled decay": ("adamw", adamw_variant(l2=True)),
    "decay from the new p": ("adamw", adamw_variant(new_p=True)),
    "decay on vectors too": ("decays", lambda n, t: True),
    "no decay on positions": ("decays", lambda n, t: t.dim() >= 2 and "wpe" not in n
                              and "positions" not in n),
    "no clipping": ("clip_scale", lambda norm, clip: 1.0),
    "clipped in every step": ("clip_scale", lambda norm, clip: clip / norm),
    "learning rate one step late": ("learning_rate", lambda c, s: rate_right(c, s - 1)),
}


def with_mutant(mutant, f, *args):
    where, new = mutant
    old = globals()[where]
    globals()[where] = new
    try:
        return f(*args)
    finally:
        globals()[where] = old


def worst_of(mine, right, floor):
    """-> largest norm-wise error over the tensors, and its tensor. `floor` bounds the scale of a
    tensor from below: a gradient that is zero in exact arithmetic (OPT's key bias) has none."""
    worst, name = 0.0, "-"
    for n in right:
        b = np.asarray(right[n], np.float64)
        e = np.abs(np.asarray(mine[n], np.float64) - b).max() / max(np.abs(b).max(), floor)
        if not e <= worst:
            worst, name = e, n
    return worst, name.replace("transformer.", "").replace("model.decoder.", "")


def study(name, c):
    print("\n" + name)
    weights, batch, batches = inputs(c)
    p, q = as_torch(weights), as_torch(weights, torch.float32)
    batch, batches = to_long(batch), to_long(batches)
    loss, logits, grads = step_gradients(p, c, *batch)
    top = max(g.abs().max().item() for g in grads.values())
    floor = 1e-2 * top
    if c["act"] == "relu":  # its derivative jumps at 0: rounding must not be able to cross it
        closest = []

        def watch(x):
            closest.append(x.detach().abs().min().item())
            return torch.clamp(x, min=0)
        with_mutant(("relu", watch), step_gradients, p, c, *batch)
        dumped = min(closest)
        with_mutant(("relu", watch), train, p, c, *batches)
        print("  closest to ReLU's corner: %.1e, in ten steps %.1e" % (dumped, min(closest)))
    loss4, logits4, grads4 = step_gradients(q, c, *batch)
    g_noise, g_name = worst_of(grads4, grads, floor)
    print("  largest gradient %.2e; scale of a tensor at least %.2e" % (top, floor))
    print("  %-36s %9s %9s %9s" % ("fp32 against float64", "loss", "logits", "gradient"))
    print("  %-36s %9.1e %9.1e %9.1e  %s" % (
        "rounding", abs(loss4.item() - loss.item()) / loss.item(), error(logits4, logits), g_noise,
        g_name))
    tiny = min(g.abs().max().item() for g in grads.values())
    if tiny < 1e-12 * top:
        zero = [n for n in grads if grads[n].abs().max() < 1e-12 * top]
        print("  zero in exact arithmetic (fp32 gives %.1e): %s" % (
            max(grads4[n].abs().max().item() for n in zero), zero))
    for label, mutant in forward_mutants(c).items():
        l, o, g = with_mutant(mutant, step_gradients, p, c, *batch)
        e, n = worst_of(g, grads, floor)
        print("  %-36s %9.1e %9.1e %9.1e  %s" % (
            label, abs(l.item() - loss.item()) / loss.item(), error(o, logits), e, n))
    losses, norms, rates, final = train(p, c, *batches)
    moved = {n: final[n] - p[n] for n in p}
    most = 1e-2 * max(t.abs().max().item() for t in moved.values())

    def against(r):
        d = {n: r[3][n].double() - p[n] for n in p}
        e, n = worst_of(d, moved, most)
        return "%9.1e %9.1e %9.1e %9.1e  %s" % (
            max(abs(a - b) / b for a, b in zip(r[0], losses)),
            max(abs(a - b) / b for a, b in zip(r[1], norms)),
            worst_of(r[3], final, 0)[0], e, n)
    print("  %-36s %9s %9s %9s %9s" % ("ten steps", "losses", "norms", "params", "moved"))
    print("  %-36s %s" % ("rounding", against(train(q, c, *batches))))
    for label, mutant in TRAIN_MUTANTS.items():
        print("  %-36s %s" % (label, against(with_mutant(mutant, train, p, c, *batches))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    for option in ("write", "check", "check-transformers", "study"):
        group.add_argument("--" + option, action="store_true")
    parser.add_argument("--case", choices=CASES, help="this case only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    good = True
    for name, c in CASES.items():
        if args.case in (None, name):
            if args.write:
                write_case(name, c)
            elif args.check:
                good &= check_case(name, c)
            elif args.check_transformers:
                good &= check_transformers(name, c)
            else:
                study(name, c)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
