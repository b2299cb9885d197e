#!/usr/bin/env python3
"""The losses of --val QUESTIONS --scores SCORES, again by transformers.

usage: python3 dev/reference/choices.py MODEL QUESTIONS SCORES [SEQ]

MODEL is a directory that the trainer saved, GPT-2 or OPT; SEQ the run's --seq, or else the longest row.
Needs torch and transformers. Prints the largest difference; fails if it is above 1e-4.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

path, questions, scores = sys.argv[1:4]
seq = int(sys.argv[4]) if len(sys.argv) > 4 else 0
model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
tokenizer = AutoTokenizer.from_pretrained(path)
by_bytes = model.config.vocab_size == 256


def encode(text):
    return list(text.encode()) if by_bytes else tokenizer(text, add_special_tokens=False).input_ids


rows = []
for line in open(questions, encoding="utf-8"):
    x = json.loads(line)
    for choice in x.get("choices", [x.get("completion", x.get("text"))]):
        prompt = encode(x.get("prompt", ""))
        if model.config.model_type == "opt" and not by_bytes:
            prompt = [2] + prompt
        answer = encode(choice)
        if "choices" not in x and tokenizer.eos_token_id is not None and not by_bytes:
            answer.append(tokenizer.eos_token_id)
        rows.append((prompt, answer))
T = seq or min(max(len(p) + len(a) for p, a in rows) + 7, model.config.max_position_embeddings)
worst = 0.0
for (prompt, answer), line in zip(rows, open(scores, encoding="utf-8"), strict=True):
    score = json.loads(line)
    answer = answer[: T if prompt else T + 1]
    begin = prompt[:1]
    prompt = prompt[max(0, len(prompt) + len(answer) - T - 1) :]
    if begin == [2] and prompt:
        prompt[0] = 2
    ids = torch.tensor([prompt + answer])
    with torch.no_grad():
        logits = model(ids[:, :-1]).logits[0].log_softmax(-1)
    loss = -logits[range(len(logits)), ids[0, 1:]][max(len(prompt) - 1, 0) :]
    assert score["tokens"] == len(loss), (score, len(loss))
    worst = max(worst, abs(score["loss"] - loss.mean().item()))
print(f"{len(rows)} rows, largest difference {worst:.2g}")
sys.exit(worst > 1e-4)
