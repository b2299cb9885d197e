#!/usr/bin/env python3
"""time_tokenizers.py DIR FILE N: the seconds for which Hugging Face's tokenizers and tiktoken encode a text
with DIR/tokenizer.json, one thread, in documents of N bytes up to the end of a line. bench_tokenizer calls it.

tiktoken has byte-level vocabularies alone, with the tokens' ids as the ranks of the merges.
"""
import json
import os
import sys
import time

folder, path, length = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ["TOKENIZERS_PARALLELISM"] = "false"
with open(path, "rb") as f:
    data = f.read()
documents, at = [], 0
while at < len(data):
    end = data.find(b"\n", at + length)
    end = len(data) if end < 0 or at + length >= len(data) else end + 1
    documents.append(data[at:end].decode("utf-8", "replace"))
    at = end


def seconds(encode):
    start = time.perf_counter()
    for document in documents:
        encode(document)
    return time.perf_counter() - start


try:
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(folder + "/tokenizer.json")
    print("tokenizers", seconds(lambda text: tokenizer.encode(text, add_special_tokens=False).ids), flush=True)
except ImportError:
    pass
try:
    import tiktoken
    with open(folder + "/tokenizer.json", encoding="utf-8") as f:
        parts = json.load(f)
    steps = parts["pre_tokenizer"]["pretokenizers"] if parts["pre_tokenizer"].get("pretokenizers") else []
    pattern = next((step["pattern"]["Regex"] for step in steps if step["type"] == "Split"), None)
    if pattern is None and parts["pre_tokenizer"]["type"] == "ByteLevel":  # GPT-2's
        pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    if pattern is not None:
        values = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in values]
        byte = {chr(c): b for b, c in [*zip(values, values), *zip(others, range(256, 324))]}
        ranks = {bytes(byte[c] for c in token): number for token, number in parts["model"]["vocab"].items()
                 if all(c in byte for c in token)}
        encoding = tiktoken.Encoding("bench", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        print("tiktoken", seconds(encoding.encode_ordinary), flush=True)
except (ImportError, TypeError, AttributeError):
    pass
