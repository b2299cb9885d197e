#!/usr/bin/env python3
"""The training step of tide.c's GPU trainer, in PyTorch on the same GPU.

GPT-2 as one writes it today: nn.Linear, scaled_dot_product_attention (flash), torch.compile, the
fused AdamW, clipping by the global norm; vocabulary padded to a multiple of 128, like ours. Random
weights and tokens. For each way of using bf16 it prints one line of JSON, and one in
words.

  master    what tide.c does: parameters, activations and gradients in bf16; fp32 copies of the
            parameters and fp32 moments for AdamW
  autocast  what most people do: fp32 parameters and gradients, rounded to bf16 in each product
  pure      everything in bf16, AdamW's moments too: least work, and small updates are lost
  mezo      no backward pass, and the weights in --dtype: zeroth-order training as its authors'
            published code does it (Malladi et al. 2023): torch.manual_seed, normal and add_ for
            each parameter, four times a step: +eps, -2 eps, +eps, and the update. Eager, as theirs
  sdpa      attention alone, forward and backward: many in a row between two events; of a causal
            product's operations half count, and backward has five products to forward's two

A step is the forward pass, the backward pass, the norm and the update, timed from one
synchronisation to the next; "ms" is the median. Without a GPU (--device cpu) it only shows that it
runs.
"""
import argparse
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--channels", type=int, default=768)
parser.add_argument("--heads", type=int, default=12)
parser.add_argument("--vocab", type=int, default=50257)
parser.add_argument("--batch", type=int, default=8, help="sequences")
parser.add_argument("--seq", type=int, default=1024, help="tokens per sequence")
parser.add_argument("--steps", type=int, default=10, help="measured")
parser.add_argument("--warmup", type=int, default=3, help="dropped before them")
parser.add_argument("--mode", default="master,autocast", help="of the list above, with commas")
parser.add_argument("--compile", default="auto", choices=("auto", "model", "block", "no"),
                    help="auto: the model up to 12 layers, else each block, which compiles sooner")
parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"),
                    help="of --mode mezo")
parser.add_argument("--activation", default="gelu", choices=("gelu", "relu"))
parser.add_argument("--device", default="cuda")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.attproj = nn.Linear(channels, channels)
        self.fc = nn.Linear(channels, 4 * channels)
        self.fcproj = nn.Linear(4 * channels, channels)

    def attention(self, x):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for part in self.qkv(x).split(C, dim=2))
        if HAS_SDPA:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            scores = q @ k.transpose(2, 3) * (C // self.heads) ** -0.5
            y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.attproj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        h = self.fc(self.ln_2(x))
        return x + self.fcproj(F.relu(h) if args.activation == "relu"
                               else F.gelu(h, approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.padded = (args.vocab + 127) // 128 * 128
        self.wte = nn.Embedding(self.padded, args.channels)
        self.wpe = nn.Embedding(args.seq, args.channels)
        self.blocks = nn.ModuleList(Block(args.channels, args.heads) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.channels)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = (2 * args.layers) ** -0.5 if "proj" in name else 1
                nn.init.normal_(p, 0, 0.02 * scale)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)  # the head is tied
        return F.cross_entropy(logits.view(-1, self.padded).float(), targets.view(-1))


def adamw(parameters):
    """The optimizer over these, decaying matrices only, and whether it is the fused one."""
    groups = [{"params": [p for p in parameters if p.dim() == 2]},
              {"params": [p for p in parameters if p.dim() != 2], "weight_decay": 0.0}]
    for extra in {"fused": True}, {}:
        try:
            optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), eps=1e-8,
                                          weight_decay=0.1, **extra)
            return optimizer, bool(extra)
        except (TypeError, RuntimeError, ValueError):
            if not extra:
                raise


class Trainer:
    def __init__(self, mode):
        self.mode = mode
        self.model = GPT2().to(args.device)
        if mode != "autocast":
            self.model = self.model.to(torch.bfloat16)
        self.parameters = list(self.model.parameters())
        self.master = self.parameters
        if mode == "master":
            self.master = [nn.Parameter(p.detach().float()) for p in self.parameters]
        self.optimizer, self.fused = adamw(self.master)
        self.compiled, self.run = "no", self.model
        if args.compile != "no" and hasattr(torch, "compile"):
            whole = args.compile == "model" or (args.compile == "auto" and args.layers <= 12)
            self.compiled = "model" if whole else "block"
            if whole:
                self.run = torch.compile(self.model)
            else:
                for i in range(args.layers):
                    self.model.blocks[i] = torch.compile(self.model.blocks[i])

    def step(self, tokens, targets):
        if self.mode == "autocast":
            with torch.autocast(torch.device(args.device).type, dtype=torch.bfloat16):
                loss = self.run(tokens, targets)
        else:
            loss = self.run(tokens, targets)
        loss.backward()
        if self.mode == "master":
            for master, p in zip(self.master, self.parameters):
                master.grad = p.grad.float()
                p.grad = None
        nn.utils.clip_grad_norm_(self.master, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.mode == "master":
            with torch.no_grad():
                if hasattr(torch, "_foreach_copy_"):
                    torch._foreach_copy_(self.parameters, self.master)
                else:
                    for p, master in zip(self.parameters, self.master):
                        p.copy_(master)
        return loss


class Mezo:
    eps, lr = 1e-3, 1e-7

    def __init__(self):
        self.model = GPT2().to(args.device).to(getattr(torch, args.dtype))
        self.parameters = list(self.model.parameters())
        self.compiled, self.fused = "no", False

    def perturb(self, scale):
        torch.manual_seed(self.seed)
        for p in self.parameters:
            z = torch.normal(mean=0, std=1, size=p.shape, device=p.device, dtype=p.dtype)
            p.add_(z * scale)

    @torch.no_grad()
    def step(self, tokens, targets):
        self.seed = int(torch.randint(1 << 30, (1,), device="cpu"))
        self.perturb(self.eps)
        up = self.model(tokens, targets)
        self.perturb(-2 * self.eps)
        down = self.model(tokens, targets)
        self.perturb(self.eps)
        g = ((up - down) / (2 * self.eps)).item()
        self.perturb(-self.lr * g)
        return up


def attention():
    """Seconds of attention's two passes, and what they are in TFLOP/s."""
    shape = args.batch, args.heads, args.seq, args.channels // args.heads
    q, k, v = (torch.randn(shape, device=args.device, dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    dy = torch.randn_like(y)
    product = args.batch * args.seq * args.seq * args.channels  # 2 operations, half of them masked
    for name, products, call in (
            ("forward", 2, lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
            ("backward", 5, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))):
        seconds = []
        for runs in (args.warmup, *(10 * args.steps,) * 3):
            if torch.device(args.device).type == "cuda":
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(runs):
                    call()
                end.record()
                end.synchronize()
                seconds.append(1e-3 * start.elapsed_time(end) / runs)
            else:
                begin = time.perf_counter()
                call()
                seconds.append(time.perf_counter() - begin)
        t = statistics.median(seconds[1:])
        print("PyTorch %s, %d heads of %d | %.1f TFLOP/s, %.1f us"
              % (name, args.heads, args.channels // args.heads, 1e-12 * products * product / t,
                 1e6 * t), flush=True)


def synchronize():
    if torch.device(args.device).type == "cuda":
        torch.cuda.synchronize()


def measure(mode):
    torch.manual_seed(1)
    trainer = Mezo() if mode == "mezo" else Trainer(mode)
    ms, losses = [], []
    for _ in range(args.warmup + args.steps):
        data = torch.randint(args.vocab, (args.batch, args.seq + 1), device=args.device)
        synchronize()
        start = time.perf_counter()
        loss = trainer.step(data[:, :-1].contiguous(), data[:, 1:].contiguous())
        synchronize()
        ms.append(1e3 * (time.perf_counter() - start))
        losses.append(loss.item())
    ms = ms[args.warmup:]
    cuda = torch.device(args.device).type == "cuda"
    return {
        "what": "PyTorch", "mode": mode, "layers": args.layers, "channels": args.channels,
        "heads": args.heads, "batch": args.batch, "seq": args.seq,
        "tokens_per_s": round(1e3 * args.batch * args.seq / statistics.median(ms), 1),
        "ms": round(statistics.median(ms), 3), "ms_min": round(min(ms), 3),
        "ms_max": round(max(ms), 3), "first_loss": round(losses[0], 4),
        "compiled": trainer.compiled, "attention": "sdpa" if HAS_SDPA else "plain",
        "adamw": "none" if mode == "mezo" else "fused" if trainer.fused else "plain",
        "dtype": args.dtype if mode == "mezo" else "bfloat16",
        "memory_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2) if cuda else None,
        "torch": torch.__version__, "device": torch.cuda.get_device_name() if cuda else "cpu"}


def main():
    for mode in args.mode.split(","):
        if mode not in ("master", "autocast", "pure", "mezo", "sdpa"):
            parser.error("--mode %s: master, autocast, pure, mezo or sdpa" % mode)
    if args.channels % args.heads != 0:
        parser.error("--channels must be a multiple of --heads")
    if hasattr(torch, "set_default_device"):
        torch.set_default_device(args.device)  # first values are made there, which is faster
    failed = False
    for mode in args.mode.split(","):
        try:
            if mode == "sdpa":
                attention()
            else:
                said = measure(mode)
                print(json.dumps(said))
                print("PyTorch %(mode)s | %(tokens_per_s).1f tokens/s, %(ms).1f ms, "
                      "compiled: %(compiled)s" % said, flush=True)
        except RuntimeError as e:  # out of memory, mostly: the other mode may fit
            failed = True
            print(json.dumps({"what": "PyTorch", "mode": mode, "error": str(e)[:300]}), flush=True)
        if torch.device(args.device).type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    sys.exit(failed)


if __name__ == "__main__":
    main()
