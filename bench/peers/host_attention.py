#!/usr/bin/env python3
"""Attention on the host beside PyTorch's and llama.cpp's, on equal shapes, in one run: decoding, and prompts beside PyTorch's only.

With `torch` installed. The others read contiguous keys and values; several layers of them take turns, as in the benchmark, so that no
cache holds them. Beside int8, llama.cpp has q8_0. All use the cores that the process may run on."""

import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import time

import numpy
import torch

import records

BATCH, TOKENS, HEADS, DIM = 16, 2048, 32, 128
ENOUGH_BYTES = 768 << 20
PROMPT_BYTES = 64 << 20
PASSES = 4
THREADS = len(os.sched_getaffinity(0))


def fastest_of(run):
    """Seconds of the fastest of several passes, the first of which is not counted."""
    run()
    times = []
    for _ in range(PASSES):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def pytorch(element, group_size):
    """GB/s of keys and values."""
    if element == "int8":
        return None
    number = getattr(torch, element)
    heads = HEADS // group_size
    one_layer = 2 * BATCH * heads * TOKENS * DIM * number.itemsize
    layers = -(-ENOUGH_BYTES // one_layer)
    keys = [torch.rand(BATCH, heads, TOKENS, DIM).to(number) for _ in range(layers)]
    values = [torch.rand(BATCH, heads, TOKENS, DIM).to(number) for _ in range(layers)]
    query = torch.rand(BATCH, HEADS, 1, DIM).to(number)

    def attend():
        for key, value in zip(keys, values):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=group_size > 1)

    with torch.inference_mode():
        return layers * one_layer / fastest_of(attend) / 1e9


class InitParameters(ctypes.Structure):
    _fields_ = [("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml:
    """llama.cpp's tensor library."""

    NUMBERS = {"float32": 0, "float16": 1, "int8": 8, "bfloat16": 30}

    def __init__(self, folder):
        self.base = ctypes.CDLL(os.path.join(folder, "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(os.path.join(folder, "libggml-cpu.so"))
        pointer, size, flag, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
        for name, result, arguments in (
            ("ggml_init", pointer, [InitParameters]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor_4d", pointer, [pointer, flag, size, size, size, size]),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_flash_attn_ext", pointer, [pointer] * 5 + [real] * 3),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_version", ctypes.c_char_p, []),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
        ):
            function = getattr(self.base, name)
            function.restype, function.argtypes = result, arguments
        self.cpu.ggml_graph_compute_with_ctx.argtypes = [pointer, pointer, flag]
        self.cpu.ggml_cpu_init()
        self.version = self.base.ggml_version().decode()

    def tensor(self, memory, element, rows, heads, sequences):
        """Random numbers; those of one token and head are used for all."""
        made = self.base.ggml_new_tensor_4d(memory, self.NUMBERS[element], DIM, rows, heads, sequences)
        numbers = numpy.random.default_rng(1).random(DIM, dtype=numpy.float32)
        if element == "int8":
            blocks = numpy.zeros(DIM // 32, dtype=[("scale", "f2"), ("numbers", "i1", 32)])
            blocks["scale"] = 1 / 127
            blocks["numbers"] = (numbers * 127).reshape(-1, 32)
            row = blocks.tobytes()
        elif element == "bfloat16":
            row = (numbers.view(numpy.uint32) >> 16).astype(numpy.uint16).tobytes()
        else:
            row = numbers.astype(element).tobytes()
        count = self.base.ggml_nbytes(made)
        filled = numpy.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(self.base.ggml_get_data(made)))
        filled.reshape(-1, len(row))[:] = numpy.frombuffer(row, dtype=numpy.uint8)
        return made

    def attend_at_once(self, element, group_size, together):
        """GB/s of keys and values, with so many sequences in a call."""
        heads = HEADS // group_size
        one_layer = 2 * BATCH * heads * TOKENS * DIM * (1 if element == "int8" else 2)
        layers = -(-ENOUGH_BYTES // one_layer)
        size = layers * (one_layer * 17 // 16 + (4 << 20)) + (256 << 20)
        memory = self.base.ggml_init(InitParameters(size, None, False))
        graph = self.base.ggml_new_graph(memory)
        num_bytes = 0
        for _ in range(layers * BATCH // together):
            query = self.tensor(memory, "float32", 1, HEADS, together)
            key, value = (self.tensor(memory, element, TOKENS, heads, together) for _ in range(2))
            num_bytes += self.base.ggml_nbytes(key) + self.base.ggml_nbytes(value)
            result = self.base.ggml_flash_attn_ext(memory, query, key, value, None, DIM**-0.5, 0, 0)
            self.base.ggml_build_forward_expand(graph, result)
        seconds = fastest_of(lambda: self.cpu.ggml_graph_compute_with_ctx(memory, graph, THREADS))
        self.base.ggml_free(memory)
        return num_bytes / seconds / 1e9

    def attend(self, element, group_size):
        """The faster of one call for all sequences and a call for each."""
        return max(self.attend_at_once(element, group_size, together) for together in (1, BATCH))


def pytorch_prefill(element, group_size, queries, tokens):
    """GFLOP/s of causal attention of a prompt's last tokens, of the pairs that the mask leaves."""
    number = getattr(torch, element)
    heads = HEADS // group_size
    layers = -(-PROMPT_BYTES // (2 * heads * tokens * DIM * number.itemsize))
    keys = [torch.rand(1, heads, tokens, DIM).to(number) for _ in range(layers)]
    values = [torch.rand(1, heads, tokens, DIM).to(number) for _ in range(layers)]
    query = torch.rand(1, HEADS, queries, DIM).to(number)
    whole = queries == tokens
    mask = None if whole else torch.ones(queries, tokens, dtype=torch.bool).tril(tokens - queries)

    def attend():
        for key, value in zip(keys, values):
            torch.nn.functional.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, is_causal=whole, enable_gqa=group_size > 1
            )

    pairs = queries * (tokens - queries) + queries * (queries + 1) / 2
    with torch.inference_mode():
        return 4 * pairs * HEADS * DIM * layers / fastest_of(attend) / 1e9


def pagedkv(program, pattern):
    command = [program, f"--benchmark_filter={pattern}", "--benchmark_format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["benchmarks"][0]


def decoding(program, ggml):
    """GB/s of keys and values, by cores, element and group size."""
    rows = {}
    for element in ("float16", "bfloat16", "int8"):
        for group_size in (1, 4, 8):
            print(f"decoding, {element}, group size {group_size} …", flush=True)
            ours = pagedkv(program, f"decode<{element}, hnd_layer_major>/group_size:{group_size}/")
            theirs = {"PyTorch": pytorch(element, group_size), "llama.cpp": ggml and ggml.attend(element, group_size)}
            figures = {"read_GB/s": ours["read_GB/s"], "pagedkv_GB/s": ours["GB/s"]}
            rows[records.name_of(THREADS, element, group_size)] = figures | {f"{name}_GB/s": rate or "–" for name, rate in theirs.items()}
    return rows


def prompts(program):
    """GFLOP/s, by cores, element, queries and tokens."""
    rows = {}
    for element in ("float16", "bfloat16"):
        for queries, tokens in ((2048, 2048), (512, 8192)):
            print(f"a prompt, {element}, {queries} of {tokens} tokens …", flush=True)
            ours = pagedkv(program, f"prefill<{element}>/group_size:4/queries:{queries}/tokens:{tokens}/")["GFLOP/s"]
            name = records.name_of(THREADS, element, f"{queries:,}", f"{tokens:,}")
            rows[name] = {"pagedkv_GFLOP/s": ours, "PyTorch_GFLOP/s": pytorch_prefill(element, 4, queries, tokens)}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="of bench/backend")
    parser.add_argument("--ggml", help="the folder of llama.cpp's libggml-base.so and libggml-cpu.so")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    torch.set_num_threads(THREADS)
    ggml = Ggml(options.ggml) if options.ggml else None
    versions = [f"PyTorch {torch.__version__.partition('+')[0]}"] + ([f"ggml {ggml.version}"] if ggml else [])
    records.report({"peer_attention": decoding(options.program, ggml), "peer_prompts": prompts(options.program)}, versions, options.json)


if __name__ == "__main__":
    main()
