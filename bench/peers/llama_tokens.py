#!/usr/bin/env python3
"""Greedy decoding of examples/llama beside llama.cpp's, on equal float32 weights and threads, in one run.

With the packages llama-cpp-python and gguf of PyPI. Two models: the one in
examples/llama/model, and a random one of 12 layers of 768 numbers. Sequences of 32 tokens get 128 more. Both sides take
turns; compared are the fastest rounds, each by the median time of its steps, as tokens a second. llama.cpp also runs weights in
bfloat16, which the example's engine does not have."""

import argparse
import ctypes
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import records

import random_model

try:
    import gguf
    import llama_cpp
    import numpy
except ImportError as error:
    missing = error
else:
    missing = None

PROMPT, ANSWER = 32, 128
RANDOM = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 4,
          "head_dim": 64, "vocab_size": 8192}
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}


def tensors(folder):
    """The names and numbers of a folder's weights."""
    data = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values = numpy.frombuffer(data[begin:end], {"F32": numpy.float32, "BF16": numpy.uint16}[entry["dtype"]])
            if entry["dtype"] == "BF16":
                values = (values.astype(numpy.uint32) << 16).view(numpy.float32)
            yield name, values.reshape(entry["shape"])


def turned(weights, num_heads):
    """Rows in the order in which llama.cpp turns pairs of them."""
    return weights.reshape(num_heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape)


def convert(folder, file, is_bfloat16):
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    to = gguf.GGUFWriter(file, "llama")
    to.add_block_count(config["num_hidden_layers"])
    to.add_context_length(config["max_position_embeddings"])
    to.add_embedding_length(config["hidden_size"])
    to.add_feed_forward_length(config["intermediate_size"])
    to.add_head_count(heads)
    to.add_head_count_kv(kv_heads)
    to.add_key_length(config["head_dim"])
    to.add_value_length(config["head_dim"])
    to.add_rope_dimension_count(config["head_dim"])
    to.add_rope_freq_base(config["rope_theta"])
    to.add_layer_norm_rms_eps(config["rms_norm_eps"])
    to.add_vocab_size(config["vocab_size"])
    to.add_tokenizer_model("no_vocab")
    for name, values in tensors(folder):
        parts = name.removesuffix(".weight").split(".", 3)
        if len(parts) < 4:
            short = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}[".".join(parts)]
        else:
            short = f"blk.{parts[2]}.{LAYER[parts[3]]}"
            values = turned(values, heads) if short.endswith("attn_q") else turned(values, kv_heads) if short.endswith("attn_k") else values
        if is_bfloat16 and values.ndim == 2:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
            to.add_tensor(f"{short}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            to.add_tensor(f"{short}.weight", numpy.ascontiguousarray(values))
    to.write_header_to_file()
    to.write_kv_data_to_file()
    to.write_tensors_to_file()
    to.close()


def prompt_of(row, vocabulary):
    return [(37 * row + 11 * i) % (vocabulary - 3) + 3 for i in range(PROMPT)]


class Peer:
    """llama.cpp with one model."""

    def __init__(self, file, vocabulary, batch, threads):
        self.vocabulary, self.batch = vocabulary, batch
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_seq_max = batch * 256, 512, batch
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.sampler = llama_cpp.llama_sampler_init_greedy()

    def compute(self, entries):
        """Adds tokens (token, position, sequence, whether its logits are wanted)."""
        batch = llama_cpp.llama_batch_init(len(entries), 0, 1)
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, is_wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, is_wanted
            batch.seq_id[i][0] = sequence
        if llama_cpp.llama_decode(self.context, batch) != 0:
            sys.exit("llama.cpp does not decode")
        found = [llama_cpp.llama_sampler_sample(self.sampler, self.context, i) for i, entry in enumerate(entries) if entry[3]]
        llama_cpp.llama_batch_free(batch)
        return found

    def run(self):
        """Seconds of each step, and the first sequence's tokens."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        prompts = [prompt_of(row, self.vocabulary) for row in range(self.batch)]
        last = self.compute([(token, i, row, i == PROMPT - 1) for row, prompt in enumerate(prompts) for i, token in enumerate(prompt)])
        tokens, seconds = [last[0]], []
        for position in range(PROMPT, PROMPT + ANSWER - 1):
            began = time.perf_counter()
            last = self.compute([(token, position, row, True) for row, token in enumerate(last)])
            seconds.append(time.perf_counter() - began)
            tokens.append(last[0])
        return statistics.median(seconds), tokens


def own(program, folder, batch, threads):
    """The engine's median time between two tokens of a request, when all run."""
    with tempfile.TemporaryDirectory() as made:
        trace, report = pathlib.Path(made) / "trace.jsonl", pathlib.Path(made) / "report.json"
        rows = [{"timestamp": 0, "input_length": 32 * PROMPT, "output_length": 32 * ANSWER, "hash_ids": [10 * row + i for i in range(2)]}
                for row in range(batch)]
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = ["--trace", trace, "--model", folder, "--json", report]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        subprocess.run([program, *options], check=True, capture_output=True, env=environment)
        return json.loads(report.read_text())[0]["between_tokens_ms"]["p50"] / 1e3


def compare(program, folder, name, rounds, made):
    """By threads and sequences, tokens a second."""
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    files = [made / f"{name}{int(is_bfloat16)}.gguf" for is_bfloat16 in (False, True)]
    for is_bfloat16, file in enumerate(files):
        convert(folder, file, bool(is_bfloat16))
    rows = {}
    for threads in (1, 2):
        for batch in (1, 8):
            print(f"{name}, {threads} threads, {batch} sequences …", flush=True)
            peers = [Peer(file, vocabulary, batch, threads) for file in files]
            times = [(own(program, folder, batch, threads), *(peer.run()[0] for peer in peers)) for _ in range(rounds)]
            ours, theirs, halves = (batch / min(column) for column in zip(*times))
            figures = {"pagedkv_rate": ours, "llama.cpp_rate": theirs, "llama.cpp_times": theirs / ours, "llama.cpp_bfloat16_rate": halves}
            rows[records.name_of(name, threads, batch)] = figures
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="engine_load, of bench/engine")
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    if missing:
        print(f"llama_tokens.py: {missing}, so nothing was measured")
        return 77
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p())
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder)
        numbers = numpy.random.default_rng(1)
        random_model.write(made, RANDOM, lambda count: (numbers.standard_normal(count, numpy.float32) * 0.05).tobytes())
        models = {"the small model": records.ROOT / "examples" / "llama" / "model", "12 layers of 768 random numbers": made}
        rows = {}
        for name, model in models.items():
            rows |= compare(options.program, model, name, options.rounds, made)
    records.report({"peer_llama": rows}, [f"llama-cpp-python {llama_cpp.__version__}"], options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
