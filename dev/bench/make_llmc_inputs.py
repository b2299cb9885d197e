#!/usr/bin/env python3
"""make_llmc_inputs.py DIR: random input for llm.c's train_gpt2, in the places where it looks.

Speed does not depend on the values, so nothing has to be downloaded: a GPT-2 124M with random
weights (gpt2_124M.bin, 0.5 GB), random tokens (dev/data/tinyshakespeare/), and a tokenizer of
placeholder strings (gpt2_tokenizer.bin). Where one of these files exists, nothing is written.
Standard library only; little-endian machines.
"""
import array
import os
import random
import sys

LAYERS, HEADS, CHANNELS, CONTEXT, VOCAB, VOCAB_PADDED = 12, 12, 768, 1024, 50257, 50304


def header(*values):
    return array.array("i", values + (0,) * (256 - len(values))).tobytes()


def write_tokens(path, count, seed):
    """A token file: magic 20240520, version 1, then `count` uint16 tokens."""
    tokens = random.Random(seed).choices(range(VOCAB), k=count)
    with open(path, "xb") as f:
        f.write(header(20240520, 1, count) + array.array("H", tokens).tobytes())


def random_floats(rng, count):
    """fp32 in +-[2^-6, 2^-5), of standard deviation 0.024: random sign and mantissa under a fixed
    exponent, all numbers at once as the digits of a big integer."""
    sign_and_mantissa = int.from_bytes(b"\xff\xff\x7f\x80" * count, "little")
    exponent = int.from_bytes(b"\x00\x00\x80\x3c" * count, "little")
    bits = rng.getrandbits(32 * count) & sign_and_mantissa | exponent
    return bits.to_bytes(4 * count, "little")


def write_model(path, seed):
    """Checkpoint, magic 20240326, version 3 (fp32): tensor by tensor, each of all the layers."""
    L, C, rng = LAYERS, CHANNELS, random.Random(seed)
    zero, one = b"\x00\x00\x00\x00", b"\x00\x00\x80\x3f"
    tensors = [  # (elements, value; None: random)
        (VOCAB * C, None), ((VOCAB_PADDED - VOCAB) * C, zero), (CONTEXT * C, None),  # wte, wpe
        (L * C, one), (L * C, zero),                              # ln1
        (L * 3 * C * C, None), (L * 3 * C, zero),                 # qkv
        (L * C * C, None), (L * C, zero),                         # attention's projection
        (L * C, one), (L * C, zero),                              # ln2
        (L * 4 * C * C, None), (L * 4 * C, zero),                 # fc
        (L * 4 * C * C, None), (L * C, zero),                     # fc's projection
        (C, one), (C, zero)]                                      # lnf
    with open(path, "xb") as f:
        f.write(header(20240326, 3, CONTEXT, VOCAB, L, HEADS, C, VOCAB_PADDED))
        for count, value in tensors:
            while count > 0:
                n = min(count, 1 << 20)
                f.write(random_floats(rng, n) if value is None else value * n)
                count -= n


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n")[0])
    data = os.path.join(sys.argv[1], "dev", "data", "tinyshakespeare")
    model, tokenizer = (os.path.join(sys.argv[1], n) for n in ("gpt2_124M.bin", "gpt2_tokenizer.bin"))
    train, val = (os.path.join(data, "tiny_shakespeare_%s.bin" % n) for n in ("train", "val"))
    for path in (model, tokenizer, train, val):  # llm.c's own may have been downloaded for hours
        if os.path.lexists(path):
            sys.exit("make_llmc_inputs.py: %s exists: name another folder" % path)
    os.makedirs(data, exist_ok=True)
    write_model(model, 1)
    write_tokens(train, 1 << 16, 2)
    write_tokens(val, 1 << 12, 3)
    with open(tokenizer, "xb") as f:
        f.write(header(20240328, 2, VOCAB, VOCAB - 1) + b"\x01x" * VOCAB)


if __name__ == "__main__":
    main()
