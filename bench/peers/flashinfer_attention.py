#!/usr/bin/env python3
"""Runs FlashInfer's paged decode on the shapes of bench/kernels/attention, and prints both as one table.

    kernel_attention ours.json
    flashinfer_attention.py ours.json [both.json]

Needs FlashInfer, PyTorch and the compilers that FlashInfer builds its kernels with. Blocks are in random order, layout HND, bf16;
times are medians of 15 samples of 4 calls each, as in the benchmark.
"""

import json
import statistics
import sys

HEAD_DIM = 128
BLOCK_SIZE = 16
WORKSPACE_BYTES = 512 << 20


def measure(torch, operation):
    operation()
    torch.cuda.synchronize()
    samples = []
    for _ in range(15):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(4):
            operation()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) / 4 / 1e3)
    return statistics.median(samples)


def run(torch, flashinfer, shape, workspace, use_tensor_cores):
    """Seconds of one call."""
    lengths = torch.tensor(shape["lengths"], dtype=torch.int32)
    blocks = (lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
    indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
    indptr[1:] = torch.cumsum(blocks, 0)
    num_blocks = int(indptr[-1])
    indices = torch.randperm(num_blocks, dtype=torch.int64).to(torch.int32)
    last = (lengths - 1) % BLOCK_SIZE + 1
    cache = torch.randn(num_blocks, 2, shape["kv_heads"], BLOCK_SIZE, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    queries = torch.randn(len(lengths), shape["query_heads"], HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=use_tensor_cores)
    wrapper.plan(
        indptr.cuda(), indices.cuda(), last.cuda(), shape["query_heads"], shape["kv_heads"], HEAD_DIM, BLOCK_SIZE,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )
    return measure(torch, lambda: wrapper.run(queries, cache))


def main():
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    try:
        import flashinfer
        import torch
    except ImportError as missing:
        print(f"flashinfer_attention.py: {missing}, so nothing was measured")
        return 77
    with open(sys.argv[1]) as file:
        ours = json.load(file)
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    results = list(ours["results"])
    print("| batch | heads | pagedkv, us | FlashInfer, us | GB/s | share of the ceiling | times as fast |")
    print("|---|---|---|---|---|---|---|")
    for shape in ours["results"]:
        if shape["element"] != "bfloat16":
            continue
        # Without matrix units it has its own kernels for some group sizes: the better of both counts.
        seconds = min(run(torch, flashinfer, shape, workspace, cores) for cores in (False, True))
        rate = shape["bytes_per_second"] * shape["microseconds"] / 1e6 / seconds
        results.append({
            **shape, "library": "flashinfer", "microseconds": seconds * 1e6, "bytes_per_second": rate,
            "share_of_ceiling": rate / ours["read_ceiling"], "plan_microseconds": None,
        })
        print(
            f"| {shape['shape']} | {shape['query_heads']}/{shape['kv_heads']} | {shape['microseconds']:.1f} | {seconds * 1e6:.1f} "
            f"| {rate / 1e9:.0f} | {rate / ours['read_ceiling']:.3f} | {seconds * 1e6 / shape['microseconds']:.2f} |",
            flush=True,
        )
        torch.cuda.empty_cache()
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({**ours, "results": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
