#!/usr/bin/env python3
"""Runs FlashInfer's paged attention on the shapes of bench/kernels/attention, and prints both as one table.

    kernel_attention ours.json
    flashinfer_attention.py ours.json [both.json]

Needs FlashInfer, PyTorch and the compilers that FlashInfer builds its kernels with. Blocks are in random order, layout HND,
bf16, and for decoding also fp8 (e4m3, one scale for all of K and one for all of V); times are medians of 15 samples of 4 calls
each, as in the benchmark. The fastest of FlashInfer's variants counts.
"""

import json
import statistics
import sys

HEAD_DIM = 128
BLOCK_SIZE = 16
WORKSPACE_BYTES = 512 << 20
# Ours, and the type of tensors that holds the same.
ELEMENTS = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn"}


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


class Table:
    """Blocks of sequences, in random order."""

    def __init__(self, torch, lengths):
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        blocks = (self.lengths + BLOCK_SIZE - 1) // BLOCK_SIZE
        self.indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        self.indptr[1:] = torch.cumsum(blocks, 0)
        self.num_blocks = int(self.indptr[-1])
        self.indices = torch.randperm(self.num_blocks, dtype=torch.int64).to(torch.int32)
        self.last = (self.lengths - 1) % BLOCK_SIZE + 1


def run(torch, flashinfer, shape, workspace, use_tensor_cores):
    """Seconds of one call of decoding."""
    table = Table(torch, shape["lengths"])
    stored = getattr(torch, ELEMENTS[shape["element"]])
    cache = torch.randn(
        table.num_blocks, 2, shape["kv_heads"], BLOCK_SIZE, HEAD_DIM, device="cuda", dtype=torch.bfloat16).to(stored)
    queries = torch.randn(len(table.lengths), shape["query_heads"], HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=use_tensor_cores)
    wrapper.plan(
        table.indptr.cuda(), table.indices.cuda(), table.last.cuda(), shape["query_heads"], shape["kv_heads"],
        HEAD_DIM, BLOCK_SIZE, q_data_type=torch.bfloat16, kv_data_type=stored,
    )
    scales = {} if stored == torch.bfloat16 else {"k_scale": 1.0, "v_scale": 1.0}
    return measure(torch, lambda: wrapper.run(queries, cache, **scales))


def run_latent(torch, flashinfer, shape, workspace, backend):
    """Seconds of one call of decoding over latent vectors."""
    latent, rotated = shape["value_dim"], shape["key_dim"] - shape["value_dim"]
    table = Table(torch, shape["lengths"])
    rows = len(table.lengths)
    random = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16)
    queries = random(rows, shape["query_heads"], latent), random(rows, shape["query_heads"], rotated)
    caches = random(table.num_blocks, BLOCK_SIZE, latent), random(table.num_blocks, BLOCK_SIZE, rotated)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend=backend)
    wrapper.plan(
        torch.arange(rows + 1, dtype=torch.int32).cuda(), table.indptr.cuda(), table.indices.cuda(),
        table.lengths.cuda(), shape["query_heads"], latent, rotated, BLOCK_SIZE, False, shape["key_dim"] ** -0.5,
        torch.bfloat16, torch.bfloat16,
    )
    return measure(torch, lambda: wrapper.run(*queries, *caches))


def run_prefill(torch, flashinfer, shape, workspace, backend):
    """Seconds of one call over chunks of prompts."""
    table = Table(torch, shape["lengths"])
    random = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16)
    rows = torch.zeros(len(shape["queries"]) + 1, dtype=torch.int32)
    rows[1:] = torch.cumsum(torch.tensor(shape["queries"], dtype=torch.int32), 0)
    queries = random(int(rows[-1]), shape["query_heads"], shape["key_dim"])
    cache = tuple(
        random(table.num_blocks, shape["kv_heads"], BLOCK_SIZE, shape[dim]) for dim in ("key_dim", "value_dim"))
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend=backend)
    wrapper.plan(
        rows.cuda(), table.indptr.cuda(), table.indices.cuda(), table.last.cuda(), shape["query_heads"],
        shape["kv_heads"], shape["key_dim"], BLOCK_SIZE, head_dim_vo=shape["value_dim"], causal=True,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
    )
    return measure(torch, lambda: wrapper.run(queries, cache))


def compare_products(torch, flashinfer, shapes, workspace):
    """Prints and returns what FlashInfer takes for attention whose arithmetic counts."""
    results = []
    print("\n| batch | heads | pagedkv, us | TFLOP/s | FlashInfer, us | TFLOP/s | times as fast |")
    print("|---|---|---|---|---|---|---|")
    for shape in shapes:
        once = run_prefill if shape["queries"] else run_latent
        measured = []
        for backend in ("fa2", "fa3"):
            try:
                measured.append((once(torch, flashinfer, shape, workspace, backend), backend))
            except Exception as refused:  # a variant that lacks the shape, or does not compile here
                print(f"# {shape['shape']}, {backend}: {type(refused).__name__}: {str(refused)[:200]}", file=sys.stderr)
            torch.cuda.empty_cache()
        heads = f"{shape['query_heads']}/{shape['kv_heads']}"
        rate = shape["operations_per_second"]
        if not measured:
            print(f"| {shape['shape']} | {heads} | {shape['microseconds']:.1f} | {rate / 1e12:.1f} | not measured | | |")
            continue
        seconds, backend = min(measured)
        theirs = rate * shape["microseconds"] / 1e6 / seconds
        results.append({
            **shape, "library": "flashinfer", "variant": backend, "microseconds": seconds * 1e6,
            "operations_per_second": theirs, "plan_microseconds": None,
        })
        print(
            f"| {shape['shape']} | {heads} | {shape['microseconds']:.1f} | {rate / 1e12:.1f} | {seconds * 1e6:.1f} "
            f"| {theirs / 1e12:.1f} | {seconds * 1e6 / shape['microseconds']:.2f} |",
            flush=True,
        )
    return results


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
    print("| batch | heads | element | pagedkv, us | FlashInfer, us | GB/s | share of the ceiling | times as fast |")
    print("|---|---|---|---|---|---|---|---|")
    for shape in ours["results"]:
        if shape["element"] not in ELEMENTS:
            continue
        # Without matrix units it has its own kernels for some group sizes: the better of both counts.
        seconds = min(run(torch, flashinfer, shape, workspace, cores) for cores in (False, True))
        rate = shape["bytes_per_second"] * shape["microseconds"] / 1e6 / seconds
        results.append({
            **shape, "library": "flashinfer", "microseconds": seconds * 1e6, "bytes_per_second": rate,
            "share_of_ceiling": rate / ours["read_ceiling"], "plan_microseconds": None,
        })
        print(
            f"| {shape['shape']} | {shape['query_heads']}/{shape['kv_heads']} | {shape['element']} "
            f"| {shape['microseconds']:.1f} | {seconds * 1e6:.1f} | {rate / 1e9:.0f} | {rate / ours['read_ceiling']:.3f} "
            f"| {seconds * 1e6 / shape['microseconds']:.2f} |",
            flush=True,
        )
        torch.cuda.empty_cache()
    products = list(ours["products"])
    products += compare_products(torch, flashinfer, ours["products"], workspace)
    if len(sys.argv) > 2:
        with open(sys.argv[2], "w") as file:
            json.dump({**ours, "results": results, "products": products}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
