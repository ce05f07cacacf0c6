#!/usr/bin/env python3
"""Runs FlashInfer's paged attention on the shapes of bench/kernels/attention, and prints both as one table; the second file gets both
as JSON, and may be the first. It is written after each shape; those that come later are "not measured" in it.

    kernel_attention ours.json
    flashinfer_attention.py ours.json [both.json]

Needs FlashInfer, PyTorch and the compilers that FlashInfer builds its kernels with. Blocks are in random order, layout HND,
bf16, and for decoding also fp8 (e4m3, one scale for all of K and one for all of V); times are medians of 15 samples of 4 calls
each, and of 15 launches of a captured graph of 4 calls, as in the benchmark. Of each, the fastest of FlashInfer's variants
counts; those that refuse a shape are named on stderr.
"""

import itertools
import json
import os
import statistics
import sys

# Of attention whose arithmetic counts.
BLOCK_SIZE = 16
WORKSPACE_BYTES = 512 << 20
# Ours, and the type of tensors that holds the same.
ELEMENTS = {"bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn"}
# Figures of a shape until it is measured; a variant that says so without a time is in the place of all figures.
UNMEASURED = {
    "library": "flashinfer", "variant": "not measured", "microseconds": None, "graph_microseconds": None, "bytes_per_second": None,
    "share_of_ceiling": None, "operations_per_second": None, "plan_microseconds": None,
}


def median_seconds(torch, operations):
    samples = []
    for _ in range(15):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        operations()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(samples)


def measure(torch, operation):
    """Seconds of one call, and of one in a captured graph; None for that if the calls cannot be captured."""

    def calls():
        for _ in range(4):
            operation()

    operation()
    torch.cuda.synchronize()
    seconds = median_seconds(torch, calls)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            calls()
    except Exception as refused:
        print(f"# no graph: {type(refused).__name__}: {str(refused)[:200]}", file=sys.stderr)
        return seconds / 4, None
    graph.replay()
    torch.cuda.synchronize()
    return seconds / 4, median_seconds(torch, graph.replay) / 4


class Table:
    """Blocks of sequences, in random order."""

    def __init__(self, torch, lengths, block_size=BLOCK_SIZE):
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        blocks = (self.lengths + block_size - 1) // block_size
        self.indptr = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        self.indptr[1:] = torch.cumsum(blocks, 0)
        self.num_blocks = int(self.indptr[-1])
        self.indices = torch.randperm(self.num_blocks, dtype=torch.int64).to(torch.int32)
        self.last = (self.lengths - 1) % block_size + 1


class Decoding:
    """The tensors of one shape of decoding. Every variant returns what `measure` does."""

    variants = ("cuda", "fa2", "fa3", "holistic")

    def __init__(self, torch, flashinfer, shape, workspace):
        self.torch, self.flashinfer, self.workspace = torch, flashinfer, workspace
        self.heads = shape["query_heads"], shape["kv_heads"]
        self.dim, self.block_size = shape["head_dim"], shape["block_size"]
        self.stored = getattr(torch, ELEMENTS[shape["element"]])
        self.table = Table(torch, shape["lengths"], self.block_size)
        numbers = torch.randn(
            self.table.num_blocks, 2, shape["kv_heads"], self.block_size, self.dim, device="cuda", dtype=torch.bfloat16)
        self.cache = numbers.to(self.stored)
        self.queries = torch.randn(
            len(self.table.lengths), shape["query_heads"], self.dim, device="cuda", dtype=torch.bfloat16)
        self.scales = {} if self.stored == torch.bfloat16 else {"k_scale": 1.0, "v_scale": 1.0}

    def run(self, variant):
        return self.run_holistic() if variant == "holistic" else self.run_wrapper(variant)

    def run_wrapper(self, variant):
        # Without matrix units it has its own kernels for some group sizes.
        chosen = {"use_tensor_cores": False} if variant == "cuda" else {"use_tensor_cores": True, "backend": variant}
        wrapper = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "HND", **chosen)
        wrapper.plan(
            self.table.indptr.cuda(), self.table.indices.cuda(), self.table.last.cuda(), *self.heads, self.dim,
            self.block_size, q_data_type=self.torch.bfloat16, kv_data_type=self.stored,
        )
        return measure(self.torch, lambda: wrapper.run(self.queries, self.cache, **self.scales))

    def run_holistic(self):
        attention = self.flashinfer.BatchAttention("HND")
        rows = self.torch.arange(len(self.table.lengths) + 1, dtype=self.torch.int32)
        attention.plan(
            rows.cuda(), self.table.indptr.cuda(), self.table.indices.cuda(), self.table.lengths.cuda(), *self.heads,
            self.dim, self.dim, self.block_size, q_data_type=self.torch.bfloat16, kv_data_type=self.stored,
        )
        return measure(self.torch, lambda: attention.run(self.queries, self.cache, **self.scales))


def microseconds(seconds):
    return None if seconds is None else round(seconds * 1e6, 2)


def fastest(torch, shape, variants, once):
    """The least seconds of a call and in a graph, and the former's variant; None if all refuse."""
    measured = []
    for variant in variants:
        try:
            measured.append((*once(variant), variant))
        except Exception as refused:  # a variant that lacks the shape, or does not compile here
            print(f"# {shape['shape']}, {variant}: {type(refused).__name__}: {str(refused)[:200]}", file=sys.stderr)
        torch.cuda.empty_cache()
    if not measured:
        return None
    seconds, _, variant = min(measured, key=lambda each: each[0])
    return seconds, min((in_graph for _, in_graph, _ in measured if in_graph is not None), default=None), variant


def compare_decoding(torch, flashinfer, ceiling, pairs, workspace):
    """Prints what FlashInfer takes for decoding; fills the second of each pair, and yields then."""
    print("| batch | heads | dim | block | element | pagedkv, us | FlashInfer, us | GB/s | share of the ceiling "
          "| times as fast | in graphs: pagedkv, us | FlashInfer, us | variant |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for shape, theirs in pairs:
        decoding = Decoding(torch, flashinfer, shape, workspace)
        found = fastest(torch, shape, Decoding.variants, decoding.run)
        start = (f"| {shape['shape']} | {shape['query_heads']}/{shape['kv_heads']} | {shape['head_dim']} "
                 f"| {shape['block_size']} | {shape['element']} | {shape['microseconds']:.1f} ")
        if found is None:
            theirs["variant"] = "refuses"
            print(start + "| refuses | | | | | | |", flush=True)
        else:
            seconds, in_graph, variant = found
            rate = shape["bytes_per_second"] * shape["microseconds"] / 1e6 / seconds
            theirs |= {
                "variant": variant, "microseconds": seconds * 1e6, "graph_microseconds": microseconds(in_graph), "bytes_per_second": rate,
                "share_of_ceiling": rate / ceiling,
            }
            print(start + f"| {seconds * 1e6:.1f} | {rate / 1e9:.0f} | {rate / ceiling:.3f} "
                  f"| {seconds * 1e6 / shape['microseconds']:.2f} | {shape['graph_microseconds']:.1f} | {microseconds(in_graph)} "
                  f"| {variant} |", flush=True)
        yield


def run_latent(torch, flashinfer, shape, workspace, backend):
    """What `measure` returns, of decoding over latent vectors."""
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
    """What `measure` returns, over chunks of prompts."""
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


def compare_products(torch, flashinfer, pairs, workspace):
    """Prints what FlashInfer takes for attention whose arithmetic counts; fills the second of each pair, and yields then."""
    print("\n| batch | heads | pagedkv, us | TFLOP/s | FlashInfer, us | TFLOP/s | times as fast | in graphs: pagedkv, us | FlashInfer, us |")
    print("|---|---|---|---|---|---|---|---|---|")
    for shape, theirs in pairs:
        once = run_prefill if shape["queries"] else run_latent
        found = fastest(
            torch, shape, ("fa2", "fa3"), lambda backend: once(torch, flashinfer, shape, workspace, backend))
        rate = shape["operations_per_second"]
        start = (f"| {shape['shape']} | {shape['query_heads']}/{shape['kv_heads']} | {shape['microseconds']:.1f} "
                 f"| {rate / 1e12:.1f} ")
        if found is None:
            theirs["variant"] = "refuses"
            print(start + "| refuses | | | | |", flush=True)
        else:
            seconds, in_graph, backend = found
            their_rate = rate * shape["microseconds"] / 1e6 / seconds
            theirs |= {
                "variant": backend, "microseconds": seconds * 1e6, "graph_microseconds": microseconds(in_graph), "operations_per_second": their_rate,
            }
            print(start + f"| {seconds * 1e6:.1f} | {their_rate / 1e12:.1f} | {seconds * 1e6 / shape['microseconds']:.2f} "
                  f"| {shape['graph_microseconds']:.1f} | {microseconds(in_graph)} |", flush=True)
        yield


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
    both = {**ours, "flashinfer": flashinfer.__version__}
    pairs = {}
    for table, elements in (("results", ELEMENTS), ("products", ("bfloat16",))):
        shapes = [shape for shape in ours[table] if shape["library"] == "pagedkv"]
        pairs[table] = [(shape, {**shape, **UNMEASURED}) for shape in shapes if shape["element"] in elements]
        both[table] = shapes + [theirs for _, theirs in pairs[table]]
    measurements = (
        compare_decoding(torch, flashinfer, ours["read_ceiling"], pairs["results"], workspace),
        compare_products(torch, flashinfer, pairs["products"], workspace),
    )
    for _ in itertools.chain(*measurements):
        if len(sys.argv) > 2:
            with open(sys.argv[2] + ".new", "w") as file:
                json.dump(both, file, indent=1)
            os.replace(sys.argv[2] + ".new", sys.argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main())
