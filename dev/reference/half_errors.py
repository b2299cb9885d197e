"""half_errors.py: how far gradients in fp16 and bf16 are from float64's: PyTorch's, and those of dumps.

usage: python3 dev/reference/half_errors.py MODEL DUMP...    (a GPT-2 of `train_gpt2 --out MODEL`, and
       what `train_gpt2cu --model MODEL --precision P --dump DUMP` wrote; with torch, transformers)

Prints of each, over the tensors: the largest and the mean of max |a - b| / max |b|, and of the same of
root mean squares. b is PyTorch's gradient in float64; in fp16 its loss is scaled by 65536.
"""
import sys
import torch
from safetensors.torch import load_file
from transformers import GPT2LMHeadModel


def gradients(model, batch, dtype, scale):
    net = GPT2LMHeadModel.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    net = net.to(dtype).eval()
    logits = net(batch["tokens"].long()).logits
    logits = logits if dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten())
    (loss * scale).backward()
    return {name: p.grad.double() / scale for name, p in net.named_parameters()}


def show(name, found, wanted):
    largest, squares = [], []
    for key, b in wanted.items():
        error = found[key if key in found else key.removeprefix("transformer.")] - b
        largest.append((error.abs().max() / b.abs().max()).item())
        squares.append((error.pow(2).sum() / b.pow(2).sum()).sqrt().item())
    print(f"{name}: max {max(largest):.5f}, mean {sum(largest) / len(largest):.5f}; "
          f"rms {max(squares):.5f}, mean {sum(squares) / len(squares):.5f}")


model, dumps = sys.argv[1], [load_file(path) for path in sys.argv[2:]]
exact = gradients(model, dumps[0], torch.float64, 1)
show("PyTorch, fp16", gradients(model, dumps[0], torch.float16, 65536), exact)
show("PyTorch, bf16", gradients(model, dumps[0], torch.bfloat16, 1), exact)
for path, dump in zip(sys.argv[2:], dumps):
    show(path, {k[5:]: g.double() for k, g in dump.items() if k.startswith("grad.")}, exact)
