#!/usr/bin/env python3
"""reference.py: an independent float64 GPT-2, OPT, LLaMA, from papers' equations, in plain PyTorch.

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
with GELU in the tanh form of Hendrycks and Gimpel 2016; or the LLaMA family (Touvron et al. 2023:
Llama, Mistral, Qwen2, Qwen3), whose block is GPT-2's with other parts: RMS norm (Zhang and Sennrich
2019), rotary positions (Su et al. 2021), key and value heads that query heads share (Ainslie et al.
2023), silu(gate) * up in the MLP (Shazeer 2020). The optimizer is AdamW (Loshchilov and Hutter
2019, algorithm 2). The parameters are in a dict under their Hugging Face names and in that layout,
so gradients and updated parameters are named and laid out the same way.
"""
import argparse
import importlib.util
import json
import math
import os
import struct
import sys
import types

import numpy as np
import torch

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures")

# L layers, NH heads, C channels, F width of the MLP, V vocabulary, ctx rows of the position table;
# E width of the embeddings, if not C; NKV key heads, if not NH; HS size of a head, if not C / NH;
# B sequences per micro-batch, T tokens each. `norm_eps` is the norms' epsilon; `biased` are the
# linear parts that have a bias; `qk_norm`: q and k are normalised; `unturned`:
# every how many layers there are no positions. `stream` scales what enters the
# residual stream: where it is small, the norms' epsilon matters. `packed`: a row holds several
# documents, and a third of the targets, -1, are not trained.
BASE = dict(family="gpt2", norm="layer", norm_eps=1e-5, act="gelu_new", tied=True, E=None, NKV=None,
            HS=None, biased=("qkv", "proj", "fc", "mlp"), qk_norm=False, unturned=None, stream=1.0,
            packed=False, accum=1, steps=10, warmup=3, lr=1e-2, min_lr=1e-3, beta1=0.9, beta2=0.95,
            eps=1e-3, weight_decay=0.1)
# `config`: keys of config.json beside those that all have; `left_out`: keys that this one has not.
LLAMA = dict(BASE, family="llama", norm="rms", act="silu", biased=(), config={}, left_out=())
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
    # three query heads for each key head, heads wider than C / NH; of the five frequencies, llama3
    # keeps one, blends one and divides three by 8
    "llama-gqa": dict(LLAMA, seed=9, L=2, NH=6, NKV=2, HS=10, C=18, F=29, V=131, ctx=512, B=2, T=13,
                      clip=9.72, tied=False, stream=0.4, lr=5e-3, config=dict(
                          head_dim=10, attention_bias=False, mlp_bias=False, pretraining_tp=1,
                          eos_token_id=[1, 5], rope_theta=100.0, rope_scaling=dict(
                              rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                              high_freq_factor=4.0, original_max_position_embeddings=32))),
    # several documents in a row, of which the longer ones are longer than the window
    "mistral-packed": dict(LLAMA, seed=10, L=2, NH=4, NKV=2, C=16, F=37, V=61, ctx=64, B=2, T=37,
                         clip=2.2, packed=True, norm_eps=1e-4, family="mistral", config=dict(
                             rope_theta=10000.0, rope_scaling=None, sliding_window=5)),
    # biases everywhere, as many key heads as heads, and no key of config.json that may be missing
    "llama-biased": dict(LLAMA, seed=11, L=1, NH=3, C=12, F=21, V=53, ctx=32, B=2, T=11, clip=12.5,
                         tied=False, stream=0.2, lr=5e-3, norm_eps=1e-6,
                         biased=("qkv", "proj", "fc", "mlp"),
                         config=dict(attention_bias=True, mlp_bias=True,
                                     rope_scaling=dict(type="linear", factor=2.5)),
                         left_out=("num_key_value_heads", "rms_norm_eps", "hidden_act",
                                   "tie_word_embeddings", "attention_dropout")),
    # one key head for all; longer than the tiles of a blocked attention, as its window is
    "mistral": dict(LLAMA, seed=12, L=1, NH=4, NKV=1, C=24, F=41, V=37, ctx=160, B=1, T=149,
                    clip=4.53, family="mistral", tied=False, stream=0.2,
                    config=dict(rope_theta=1000.0, sliding_window=70)),
    # biases of q, k and v; the newer key for positions; llama3's length is that of the model; a
    # window that is not used
    "qwen2": dict(LLAMA, seed=13, L=2, NH=4, NKV=2, C=24, F=31, V=137, ctx=48, B=2, T=15, clip=4.41,
                  family="qwen2", biased=("qkv",), norm_eps=1e-4, config=dict(
                      use_sliding_window=False, sliding_window=3, max_window_layers=0,
                      rope_parameters=dict(rope_type="llama3", rope_theta=200.0, factor=4.0,
                                           low_freq_factor=1.0, high_freq_factor=4.0))),
    # norms of q and k, where only a large epsilon matters; two micro-batches per step
    "qwen3": dict(LLAMA, seed=14, L=2, NH=4, NKV=2, HS=8, C=20, F=33, V=67, ctx=40, B=2, T=17,
                  clip=2.78, family="qwen3", qk_norm=True, norm_eps=1e-3, accum=2, config=dict(
                      head_dim=8, attention_bias=False, use_sliding_window=False,
                      sliding_window=None, layer_types=["full_attention"] * 2, dtype="float32",
                      rope_parameters=dict(rope_type="default", rope_theta=50.0))),
    # every second layer has no positions
    "smollm3": dict(LLAMA, seed=15, L=2, NH=4, NKV=2, C=16, F=29, V=53, ctx=32, B=2, T=14, clip=3.3,
                    family="smollm3", unturned=2, config=dict(
                        attention_bias=False, mlp_bias=False, no_rope_layer_interval=2,
                        no_rope_layers=[1, 0], use_sliding_window=False, sliding_window=None,
                        pad_token_id=None, rope_theta=5000.0)),
}
# Hugging Face's names of the parts; those of a layer in file order. A part of several names is
# stored in pieces: q, k and v; gate and up.
NAMES = {
    "gpt2": dict(top="transformer.", wte="wte", wpe="wpe", ln_f="ln_f", h="h.%d.", layer=dict(
        ln_1=["ln_1"], qkv=["attn.c_attn"], proj=["attn.c_proj"],
        ln_2=["ln_2"], fc=["mlp.c_fc"], mlp=["mlp.c_proj"])),
    "opt": dict(top="model.decoder.", wte="embed_tokens", wpe="embed_positions",
                ln_f="final_layer_norm", h="layers.%d.", layer=dict(
        qkv=["self_attn.%s_proj" % n for n in "qkv"], proj=["self_attn.out_proj"],
        ln_1=["self_attn_layer_norm"], fc=["fc1"], mlp=["fc2"], ln_2=["final_layer_norm"])),
    "llama": dict(top="model.", wte="embed_tokens", wpe=None, ln_f="norm", h="layers.%d.",
                  layer=dict(
        ln_1=["input_layernorm"], qkv=["self_attn.%s_proj" % n for n in "qkv"],
        qk_norm=["self_attn.%s_norm" % n for n in "qk"], proj=["self_attn.o_proj"],
        ln_2=["post_attention_layernorm"], fc=["mlp.gate_proj", "mlp.up_proj"],
        mlp=["mlp.down_proj"])),
}
NAMES.update(dict.fromkeys(("mistral", "qwen2", "qwen3", "smollm3"), NAMES["llama"]))
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


def layer_norm(x, w, b, eps):  # over the last dimension, biased variance
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps) * w + b


def rms_norm(x, w, b, eps):  # over the last dimension; has no b
    return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + eps) * w


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def relu(x):
    return torch.where(x > 0, x, torch.zeros_like(x))


def gated_silu(gate, up):
    return gate / (1 + torch.exp(-gate)) * up


def causal_mask(T):  # (T, T), true where row t may not look at column s
    t = torch.arange(T)
    return t[None, :] > t[:, None]


def window_mask(T, window):  # the same, for a row that looks back over `window` tokens, its own too
    t = torch.arange(T)
    return t[None, :] <= t[:, None] - window


def other_documents(begins):  # (B, T) -> (B, 1, T, T), true where s is of another document than t
    return (begins[:, None, :, None] != begins[:, None, None, :])


def rope_of(config):  # the keys of rope_parameters, from either spelling of config.json
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {"rope_theta": config.get("rope_theta", 10000.0),
            "rope_type": rope.get("type", "default"),
            "original_max_position_embeddings": config["max_position_embeddings"], **rope}


def frequencies(config, HS):  # (HS / 2): by how much a pair of channels turns from token to token
    rope = rope_of(config)
    kind = rope["rope_type"]
    w = rope["rope_theta"] ** (-2 * torch.arange(HS // 2, dtype=torch.float64) / HS)
    if kind == "linear":
        return w / rope["factor"]
    if kind == "llama3":  # the slow ones are divided, the fast ones kept, those between are blends
        length = rope["original_max_position_embeddings"]
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        keep = ((length * w / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return keep * w + (1 - keep) * w / rope["factor"]
    assert kind == "default", kind
    return w


def rotate(x, angle):  # (B, NH, T, HS), angle per channel i < HS / 2, which turns with i + HS / 2
    cos, sin = torch.cos(angle).to(x.dtype), torch.sin(angle).to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def place(x, angle, norm):  # what attention sees of q and of k; only Qwen3 has this norm
    return rotate(norm(x) if norm else x, angle)


def for_each_query_head(x, heads):  # (B, NKV, T, HS) -> (B, NH, T, HS)
    return x if heads == x.shape[1] else x.repeat_interleave(heads // x.shape[1], 1)


def attention(q, k, v, begins=None, window=None):
    # q (B, NH, T, HS); k, v (B, NKV, T, HS) -> (B, T, NH HS)
    B, NH, T, HS = q.shape
    k, v = for_each_query_head(k, NH), for_each_query_head(v, NH)
    score = q @ k.transpose(-1, -2) / math.sqrt(HS)  # (B, NH, T, T)
    score = score.masked_fill(causal_mask(T), -math.inf)
    if begins is not None:
        score = score.masked_fill(other_documents(begins), -math.inf)
    if window is not None:
        score = score.masked_fill(window_mask(T, window), -math.inf)
    att = torch.exp(score - score.max(-1, keepdim=True)[0])
    att = att / att.sum(-1, keepdim=True)
    return (att @ v).permute(0, 2, 1, 3).reshape(B, T, NH * HS)


def residual(x, y):
    return x + y


def positions(tokens, begins):  # (T) or (B, T): counted within the document
    return torch.arange(tokens.shape[1]) - (0 if begins is None else begins)


def lookup(wte, wpe, tokens, offset, begins=None):  # OPT's table starts with `offset` unused rows
    x = wte[tokens]
    return x if wpe is None else x + wpe[positions(tokens, begins) + offset]


def linear(p, name, x, family):  # GPT-2 keeps weights as (C, OC), the others as (OC, C)
    w, b = p[name + ".weight"], p.get(name + ".bias")
    y = x @ (w if family == "gpt2" else w.t())
    return y if b is None else y + b


def head_shape(c):  # -> query heads, key heads, channels of a head
    return c["NH"], c["NKV"] or c["NH"], c["HS"] or c["C"] // c["NH"]


def window_of(c):  # of tokens that each one sees, or None
    return c["config"].get("sliding_window") if c["family"] == "mistral" else None


def forward(p, c, tokens, begins=None):
    """tokens (B, T) -> logits (B, T, V). p: parameters under their Hugging Face names.
    begins (B, T): where in its row each token's document begins."""
    names, HS = NAMES[c["family"]], head_shape(c)[2]
    top, part = names["top"], names["layer"]
    post = c["E"] is not None  # OPT-350M
    act = {"gelu_new": gelu, "relu": relu, "silu": gated_silu}[c["act"]]
    normalise = layer_norm if c["norm"] == "layer" else rms_norm
    angle = None
    if not names["wpe"]:
        angle = positions(tokens, begins)[..., None, :, None] * frequencies(make_config(c), HS)

    def norm(name, x):
        return normalise(x, p[name + ".weight"], p.get(name + ".bias"), c["norm_eps"])

    def products(x, h, which):
        return [linear(p, h + name, x, c["family"]) for name in part[which]]

    def turned(x, name):
        return place(x, angle, (lambda y: norm(name, y)) if c["qk_norm"] else None)

    def attend(x, h):
        qkv = products(x, h, "qkv")
        qkv = qkv if len(qkv) == 3 else qkv[0].split(c["C"], -1)
        q, k, v = (y.reshape(*y.shape[:2], -1, HS).permute(0, 2, 1, 3) for y in qkv)
        if angle is not None and (i + 1) % (c["unturned"] or c["L"] + 1):
            q, k = (turned(y, h + name) for y, name in zip((q, k), part["qk_norm"]))
        return products(attention(q, k, v, begins, window_of(c)), h, "proj")[0]

    def mlp(x, h):
        return products(act(*products(x, h, "fc")), h, "mlp")[0]
    wte, wpe = p[top + names["wte"] + ".weight"], p.get("%s%s.weight" % (top, names["wpe"]))
    up = wte @ p[top + "project_in.weight"].t() if post else wte
    x = lookup(up, wpe, tokens, 2 if c["family"] == "opt" else 0, begins)
    for i in range(c["L"]):
        h = top + names["h"] % i
        for branch, ln in ((attend, h + part["ln_1"][0]), (mlp, h + part["ln_2"][0])):
            y = branch(x if post else norm(ln, x), h)
            x = norm(ln, residual(x, y)) if post else residual(x, y)
    x = x @ p[top + "project_out.weight"].t() if post else norm(top + names["ln_f"], x)
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
    E, names, (NH, NKV, HS) = c["E"] or C, NAMES[c["family"]], head_shape(c)
    top = names["top"]

    def add_linear(name, cin, cout, part):
        kind = "inner" if part in ("qkv", "fc") else "stream"
        out[name + ".weight"] = ((cin, cout) if c["family"] == "gpt2" else (cout, cin), kind, cin)
        if part in c["biased"]:
            out[name + ".bias"] = ((cout,), kind + "-bias", cin)

    def add_norm(name, size):
        out[name + ".weight"] = ((size,), "norm", size)
        if c["norm"] == "layer":
            out[name + ".bias"] = ((size,), "bias", size)
    # of a layer's linear parts: input, and outputs that share their input
    widths = {"qkv": (C, (NH * HS, NKV * HS, NKV * HS)), "proj": (NH * HS, (C,)),
              "fc": (C, (F, F) if c["act"] == "silu" else (F,)), "mlp": (F, (C,))}
    out[top + names["wte"] + ".weight"] = ((V, E), "wte", E)
    if names["wpe"]:
        unused = 2 if c["family"] == "opt" else 0
        out[top + names["wpe"] + ".weight"] = ((c["ctx"] + unused, C), "wpe", C)
    for i in range(c["L"]):
        h = top + names["h"] % i
        for part, those in names["layer"].items():
            if part in widths:
                cin, couts = widths[part]
                each = list(zip(those, couts if len(those) > 1 else (sum(couts),)))
                for name, cout in each[1:] + each[:1]:  # OPT has k and v before q
                    add_linear(h + name, cin, cout, part)
            elif part != "qk_norm" or c["qk_norm"]:
                for name in those:
                    add_norm(h + name, HS if part == "qk_norm" else C)
    if E == C:
        add_norm(top + names["ln_f"], C)
    else:
        out[top + "project_in.weight"] = ((C, E), "inner", E)
        out[top + "project_out.weight"] = ((E, C), "inner", C)
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
    if c["norm"] == "rms":
        config = dict(model_type=c["family"],
                      architectures=[c["family"].capitalize().replace("Smollm", "SmolLM")
                                     + "ForCausalLM"],
                      num_hidden_layers=c["L"], num_attention_heads=c["NH"],
                      num_key_value_heads=c["NKV"] or c["NH"], hidden_size=c["C"],
                      intermediate_size=c["F"], max_position_embeddings=c["ctx"], vocab_size=c["V"],
                      rms_norm_eps=c["norm_eps"], hidden_act=c["act"], attention_dropout=0.0,
                      tie_word_embeddings=c["tied"], bos_token_id=0, eos_token_id=0)
        config.update(c["config"])
        return {key: value for key, value in config.items() if key not in c["left_out"]}
    return dict(model_type="opt", architectures=["OPTForCausalLM"], num_hidden_layers=c["L"],
                num_attention_heads=c["NH"], hidden_size=c["C"],
                word_embed_proj_dim=c["E"] or c["C"], max_position_embeddings=c["ctx"],
                vocab_size=c["V"], ffn_dim=c["F"], activation_function=c["act"],
                do_layer_norm_before=c["E"] is None, dropout=0.0,
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


class AllDouble(types.ModuleType):
    """The module torch, in which float32 is float64: transformers' RMS norms, rotary positions and
    eager softmax convert to float32, whatever the model's type is."""
    def __getattr__(self, name):
        return getattr(torch, "float64" if name in ("float", "float32") else name)


def load_transformers(path, family):  # the model in a directory, in float64 throughout
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for module in ("modeling_rope_utils", "models.{0}.modeling_{0}".format(family)):
        importlib.import_module("transformers." + module).torch = AllDouble("torch")
    return transformers.AutoModelForCausalLM.from_pretrained(
        path, attn_implementation="eager", dtype=torch.float64).train()


def step_transformers(path, family, dump):
    """The dump's step by transformers, in float64: loss, logits, gradients by name."""
    model = load_transformers(path, family)
    for part in model.modules():
        if isinstance(part, torch.nn.Embedding):
            part.padding_idx = None  # PyTorch leaves that row's gradient out
    tokens, targets = to_long((dump["tokens"].copy(), dump["targets"].copy()))
    documents = {}
    if "begins" in dump:
        begins, place = to_long((dump["begins"].copy(),))[0], torch.arange(tokens.shape[1])
        seen = (place[None, :] <= place[:, None]) & (place >= begins[:, :, None])  # (B, T, T)
        if getattr(model.config, "sliding_window", None):
            seen &= ~window_mask(len(place), model.config.sliding_window)
        hidden = torch.full(seen.shape, -1e300, dtype=torch.float64).masked_fill(seen, 0)
        documents = {"position_ids": place - begins, "attention_mask": hidden[:, None]}
    logits = model(input_ids=tokens, **documents).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.view(-1),
                                             ignore_index=-1)
    loss.backward()
    return loss.detach(), logits.detach(), {n: t.grad for n, t in model.named_parameters()}


def check_transformers(name, c):
    """Logits, loss, gradients and the saved files against transformers, in float64."""
    path = os.path.join(HERE, name)
    dump = safetensors_read(os.path.join(path, "dump.safetensors"))
    tokens, targets = to_long((dump["tokens"].copy(), dump["targets"].copy()))
    begins = to_long((dump["begins"].copy(),))[0] if "begins" in dump else None
    try:
        loss, logits, theirs = step_transformers(path, c["family"], dump)
    except Exception as e:
        print("FAIL %s: %s" % (name, e))
        return False
    _, mine, grads = step_gradients(as_torch(inputs(c)[0]), c, tokens, targets, begins)
    worst = error(logits, mine)
    floor = max(g.abs().max().item() for g in grads.values()) * 1e-3
    worst_grad = 0.0
    for n, g in theirs.items():
        d = (g - grads[n]).abs().max().item()
        worst_grad = max(worst_grad, d / max(grads[n].abs().max().item(), floor))
    good = set(theirs) == set(grads) and worst < 1e-12 and worst_grad < 1e-11 \
        and abs(loss.item() - dump["loss"][0]) < 1e-12
    print("%s %-12s logits %.1e, loss %.1e, gradients %.1e" % (
        "ok" if good else "FAIL", name, worst, abs(loss.item() - dump["loss"][0]), worst_grad))
    return good

# ---------------------------------------------------------------------------------------------
# The study: rounding noise, and mistakes


class NormWithout(torch.autograd.Function):
    """A norm whose backward lacks a term: dx = (g - mean(g) - xhat mean(g xhat)) / sigma. RMS norm
    (b is None) has no mean(g)."""
    @staticmethod
    def forward(ctx, x, w, b, eps, term):
        x = x if b is None else x - x.mean(-1, keepdim=True)
        sigma = torch.sqrt((x ** 2).mean(-1, keepdim=True) + eps)
        xhat = x / sigma
        ctx.save_for_backward(xhat, sigma, w)
        ctx.term, ctx.layer = term, b is not None
        return xhat * w + (b if ctx.layer else 0)

    @staticmethod
    def backward(ctx, dy):
        xhat, sigma, w = ctx.saved_tensors
        g = dy * w
        dx = g
        if ctx.term != "mean" and ctx.layer:
            dx = dx - g.mean(-1, keepdim=True)
        if ctx.term != "xhat":
            dx = dx - xhat * (g * xhat).mean(-1, keepdim=True)
        lead = tuple(range(dy.dim() - 1))
        return dx / sigma, (dy * xhat).sum(lead), dy.sum(lead) if ctx.layer else None, None, None


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


gelu_right, linear_right, layer_norm_right, rms_norm_right = gelu, linear, layer_norm, rms_norm
rotate_right, frequencies_right, lookup_right, silu_right = rotate, frequencies, lookup, gated_silu


def linear_no_bias_gradient(which):
    def f(p, name, x, family):
        if which in name:
            p = dict(p, **{name + ".bias": p[name + ".bias"].detach()})
        return linear_right(p, name, x, family)
    return f


def norm_eps(eps, which):
    """Another epsilon in the norms whose index is in `which` (counted through one forward)."""
    count = [0]

    def f(x, w, b, right):
        i, count[0] = count[0], count[0] + 1
        norm = rms_norm_right if b is None else layer_norm_right
        return norm(x, w, b, eps if which(i) else right)
    return f


def mask_leak(T):  # the row before the last sees the last column
    mask = np.triu(np.ones((T, T), bool), 1)
    mask[T - 2, T - 1] = False
    return torch.from_numpy(mask)


def mask_short(T):  # the last row does not see the first column
    mask = np.triu(np.ones((T, T), bool), 1)
    mask[T - 1, 0] = True
    return torch.from_numpy(mask)


def neighbours(x, angle):  # channel 2i turns with channel 2i + 1, the paper's order
    halves = torch.cat([x[..., 0::2], x[..., 1::2]], -1)
    a, b = rotate_right(halves, angle).chunk(2, -1)
    return torch.stack([a, b], -1).flatten(-2)


def rotate_not_back(x, angle):  # the gradient turns forwards, too
    wrong = rotate_right(x, -angle)
    return rotate_right(x, angle).detach() + wrong - wrong.detach()


def one_heads_gradient(x, heads):  # key heads have it of the first of their query heads only
    group = heads // x.shape[1]
    each = torch.stack([x] + [x.detach()] * (group - 1), 2)
    return each.flatten(1, 2)


def silu_without_slope(gate, up):
    return gate * (1 / (1 + torch.exp(-gate))).detach() * up


def rope_mutants(c):
    NH, NKV, HS = head_shape(c)
    config = make_config(c)
    rope = rope_of(config)

    def other(**keys):
        changed = dict(config, rope_scaling={**rope, **keys})
        return "frequencies", lambda _, HS: frequencies_right(changed, HS)
    out = {
        "rotation of neighbours": ("rotate", neighbours),
        "rotation the other way": ("rotate", lambda x, a: rotate_right(x, -a)),
        "rotation's gradient not turned back": ("rotate", rotate_not_back),
        "theta 1 % larger": other(rope_theta=1.01 * rope["rope_theta"]),
        "gate and up swapped": ("gated_silu", lambda g, u: silu_right(u, g)),
        "GELU for SiLU": ("gated_silu", lambda g, u: gelu_right(g) * u),
        "SiLU backward without its slope": ("gated_silu", silu_without_slope),
    }
    if "factor" in rope:
        out["rope_scaling ignored"] = other(rope_type="default")
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        out["llama3: blended ones divided"] = other(low_freq_factor=high * 0.999999)
        out["llama3: blended ones kept"] = other(high_freq_factor=low * 1.000001)
    if NKV < NH:
        out["keys' gradient of one query head"] = ("for_each_query_head", one_heads_gradient)
    if 1 < NKV < NH:
        out["query head h reads h mod NKV"] = (
            "for_each_query_head", lambda x, heads: x.repeat(1, heads // x.shape[1], 1, 1))
    if c["qk_norm"]:
        out["q, k normalised after the rotation"] = (
            "place", lambda x, angle, norm: norm(rotate(x, angle)))
        out["norm epsilon 0, q and k only"] = ("rms_norm", norm_eps(0, lambda i: i % 4 in (1, 2)))
    return out


def forward_mutants(c):
    part = NAMES[c["family"]]["layer"]
    norms = (4 if c["qk_norm"] else 2) * c["L"] + 1
    norm = c["norm"] + "_norm"
    out = {
        "bias gradient of fc missing": ("linear", linear_no_bias_gradient(part["fc"][0])),
        "bias gradient of qkv missing": ("linear", linear_no_bias_gradient(part["qkv"][-1])),
        "norm backward without mean(g)": (norm, lambda *a: NormWithout.apply(*a, "mean")),
        "norm backward without xhat term": (norm, lambda *a: NormWithout.apply(*a, "xhat")),
        "mask: one column too many, one row": ("causal_mask", mask_leak),
        "mask: one column too few, one row": ("causal_mask", mask_short),
        "mask: documents see each other": ("other_documents", lambda b: torch.tensor(False)),
        "mask: no window": ("window_mask", lambda T, window: torch.tensor(False)),
        "mask: a window of one token more": ("window_mask", lambda T, window: window_right(T, window + 1)),
        "GELU by erf": ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
        "GELU backward without the cubic": ("gelu", GeluWithout.apply),
        "norm epsilon 0, all": (norm, norm_eps(0, lambda i: True)),
        "norm epsilon a tenth, all": (norm, norm_eps(c["norm_eps"] / 10, lambda i: True)),
        "norm epsilon 0, ln_f only": (norm, norm_eps(0, lambda i: i == norms - 1)),
        "no residual": ("residual", lambda x, y: y),
        "lookup's gradient missing": ("lookup", lambda wte, *a: lookup_right(wte.detach(), *a)),
        "loss over B*T - 1 tokens": ("cross_entropy", lambda l, t: cross_entropy_right(l, t)
                                     * t.numel() / (t.numel() - 1)),
    }
    present = {"GELU": c["act"] == "gelu_new", "documents": c["packed"],
               "window": window_of(c) is not None,
               "mean(g)": norm == "layer_norm",
               "of fc": "fc" in c["biased"], "of qkv": "qkv" in c["biased"]}
    out = {k: v for k, v in out.items() if all(present[word] for word in present if word in k)}
    if c["family"] == "opt":
        out["positions start at row 0"] = ("lookup", lambda wte, wpe, t, o, b=None: (
            lookup_right(wte, wpe, t, 0, b)))
    if NAMES[c["family"]]["wpe"] is None:
        out.update(rope_mutants(c))
    return out


cross_entropy_right, adamw_right, rate_right = cross_entropy, adamw, learning_rate
window_right = window_mask


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
    return worst, name.replace("transformer.", "").replace("model.", "").replace("decoder.", "")


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
        if "positions" in label and NAMES[c["family"]]["wpe"] is None:
            continue
        print("  %-36s %s" % (label, against(with_mutant(mutant, train, p, c, *batches))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    group = parser.add_mutually_exclusive_group(required=True)
    for option in ("write", "check", "check-transformers", "study"):
        group.add_argument("--" + option, action="store_true")
    parser.add_argument("--case", choices=CASES, help="this case only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check_transformers and not importlib.util.find_spec("transformers"):
        print("skip --check-transformers: transformers is missing")
        return 0
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
