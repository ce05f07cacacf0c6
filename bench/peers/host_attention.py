#!/usr/bin/env python3
"""Decode attention on the host beside PyTorch's, on equal shapes, in one run, as a table.

Usage: host_attention.py BACKEND_BENCH, with `torch` installed and BACKEND_BENCH the program of bench/backend. PyTorch reads
contiguous keys and values; several layers of them take turns, as in the benchmark, so that no cache holds them."""

import json
import subprocess
import sys
import time

import torch

BATCH, TOKENS, HEADS, DIM = 16, 2048, 32, 128
ENOUGH_BYTES = 768 << 20


def pytorch(number, group_size):
    """GB/s of keys and values, of the fastest of several passes over all layers."""
    heads = HEADS // group_size
    one_layer = 2 * BATCH * heads * TOKENS * DIM * number.itemsize
    layers = -(-ENOUGH_BYTES // one_layer)
    keys = [torch.rand(BATCH, heads, TOKENS, DIM).to(number) for _ in range(layers)]
    values = [torch.rand(BATCH, heads, TOKENS, DIM).to(number) for _ in range(layers)]
    query = torch.rand(BATCH, HEADS, 1, DIM).to(number)
    fastest = float("inf")
    with torch.inference_mode():
        for _ in range(4):
            start = time.perf_counter()
            for key, value in zip(keys, values):
                torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=group_size > 1)
            fastest = min(fastest, time.perf_counter() - start)
    return layers * one_layer / fastest / 1e9


def pagedkv(program, element, group_size):
    pattern = f"decode<{element}, hnd_layer_major>/group_size:{group_size}/"
    command = [program, f"--benchmark_filter={pattern}", "--benchmark_format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["benchmarks"][0]


def main():
    print("| element | group size | read GB/s | pagedkv GB/s | PyTorch GB/s |\n|---|---|---|---|---|")
    for element, number in (("bfloat16", torch.bfloat16), ("float16", torch.float16)):
        for group_size in (1, 4, 8):
            ours = pagedkv(sys.argv[1], element, group_size)
            theirs = pytorch(number, group_size)
            print(f"| {element} | {group_size} | {ours['read_GB/s']:.1f} | {ours['GB/s']:.1f} | {theirs:.1f} |", flush=True)


if __name__ == "__main__":
    main()
