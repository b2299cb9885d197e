#!/usr/bin/env python3
"""Cross-check of tide/files/hf.h with Hugging Face transformers. Needs torch and transformers; it is
not part of `make test`, which has fixtures that transformers wrote (dev/test/fixtures/hf).

    dev/test/hf_roundtrip.py [TRAINER]      transformers -> tide (./train_gpt2) -> transformers

The round trip saves small models of all families with random weights (tied and untied; fp32, fp16,
bf16; one file, shards, the base model without prefix), has the trainer load and save each, and
wants back the same tensors with no key missing or unexpected. In fp32 check.py also
compares the trainer's reference dump with PyTorch: loss, logits and every gradient.
"""
import itertools
import os
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers import LlamaConfig, MistralConfig, OPTConfig, OPTForCausalLM, Qwen2Config, Qwen3Config
from transformers import SmolLM3Config

LLAMA = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config,
         "smollm3": SmolLM3Config}

HERE = os.path.dirname(os.path.abspath(__file__))

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


def make_model(family, layers, heads, channels, ffn, context, vocab, tied=True):
    if family == "gpt2":
        config = GPT2Config(n_layer=layers, n_head=heads, n_embd=channels, n_inner=ffn,
                            n_positions=context, vocab_size=vocab, bos_token_id=0, eos_token_id=0,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                            tie_word_embeddings=tied)
        return GPT2LMHeadModel(config)
    if family in LLAMA:  # the untied ones have heads of another width, and scaled positions
        scaling = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 12}
        return AutoModelForCausalLM.from_config(LLAMA[family](
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 2,
            hidden_size=channels, intermediate_size=ffn or 3 * channels, head_dim=10 if tied else 16,
            max_position_embeddings=context, vocab_size=vocab, bos_token_id=0, eos_token_id=[0, 1],
            rms_norm_eps=1e-5, tie_word_embeddings=tied, pad_token_id=None,
            sliding_window=5 if family == "mistral" else None,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0} if tied else scaling))
    config = OPTConfig(num_hidden_layers=layers, num_attention_heads=heads, hidden_size=channels,
                       word_embed_proj_dim=channels // 2 if family == "opt-350m" else channels,
                       do_layer_norm_before=family == "opt", ffn_dim=ffn or 4 * channels,
                       max_position_embeddings=context, vocab_size=vocab, bos_token_id=0,
                       eos_token_id=0, pad_token_id=None, dropout=0.0, attention_dropout=0.0,
                       tie_word_embeddings=tied)
    return OPTForCausalLM(config)


def run(arguments):
    result = subprocess.run(arguments, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: exit code {result.returncode}\n{result.stderr}")


def compare_dump(trainer, directory, text):
    """Has check.py repeat the dumped step in PyTorch."""
    path = directory + ".dump.safetensors"
    run([trainer, "--model", directory, "--data", text, "--tokenizer", "bytes", "--batch", "2",
         "--seq", "16", "--dump", path])
    run([sys.executable, os.path.join(HERE, "..", "reference", "check.py"), directory, path])


def stored_as(x, dtype):
    """bf16 as masters are rounded (master_weight() of adam.h): to the nearest, halves away from 0."""
    if dtype == torch.float32:
        return x.float()
    return ((x.float().contiguous().view(torch.int32) + 0x8000) >> 16).to(torch.int16).view(dtype)


def round_trip(trainer, work):
    text = os.path.join(work, "text.txt")
    with open(text, "w") as f:
        f.write("".join(chr(33 + i * i % 90) for i in range(4000)))
    done = 0
    for family, tied, dtype, how in itertools.product(
            ("gpt2", "opt", "opt-350m", *LLAMA), (True, False), (torch.float32, torch.float16, torch.bfloat16),
            ("file", "shards", "base")):
        if how == "base" and not tied:
            continue  # the base model has no head
        torch.manual_seed(done)
        model = make_model(family, 2, 4, 40, 100 if tied else None, 24, 256, tied)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn_like(p) * 0.05)
            if family.startswith("opt"):  # rows that no position uses; saved as zeros
                model.model.decoder.embed_positions.weight[:2] = 0
        model = model.to(dtype).eval()
        source = os.path.join(work, f"{family}_{'tied' if tied else 'untied'}_{dtype}_{how}"[:64])
        what = model if how != "base" else model.transformer if family == "gpt2" else model.model
        what.save_pretrained(source, **({"max_shard_size": "60KB"} if how == "shards" else {}))
        for save in ("fp32", "bf16"):
            back = source + "_" + save
            run([trainer, "--model", source, "--data", text, "--tokenizer", "bytes", "--batch", "2",
                 "--seq", "16", "--steps", "0", "--save-dtype", save, "--out", back])
            again, info = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
            if family in LLAMA:  # what was read is kept
                for key in ("eos_token_id", "rope_parameters", "head_dim", "rms_norm_eps"):
                    want, got = getattr(model.config, key), getattr(again.config, key)
                    assert want == got, (back, key, want, got)
            for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
                assert not info.get(key), (back, key, info[key])
            want, got = model.state_dict(), again.state_dict()
            assert want.keys() == got.keys(), want.keys() ^ got.keys()
            stored = torch.float32 if save == "fp32" else torch.bfloat16
            for name in want:
                assert torch.equal(stored_as(want[name], stored), got[name]), (back, name)
            done += 1
        if dtype == torch.float32:
            compare_dump(trainer, source, text)
        print(f"ok {os.path.basename(source)}", flush=True)
    print(f"{done} round trips, transformers {transformers.__version__}, torch {torch.__version__}")


def main():
    trainer = os.path.join(HERE, "..", "..", "train_gpt2")
    with tempfile.TemporaryDirectory() as work:
        round_trip(sys.argv[1] if len(sys.argv) > 1 else trainer, work)


if __name__ == "__main__":
    main()
