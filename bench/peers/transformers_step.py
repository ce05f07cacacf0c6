#!/usr/bin/env python3
"""Decodes with `transformers`, its static cache and its compiled model, on the sizes of bench/engine/device_step, and
prints both as one table; the second file gets both as JSON, and may be the first. scripts/device-test runs it so.

    device_step ours.json
    transformers_step.py ours.json [both.json]

Needs PyTorch and transformers. The weights are random, as in the benchmark; a step is the forward pass of one token of each
sequence and the choice of the most likely ones. Times are medians.
"""

import argparse
import json
import os
import statistics
import sys
import time

WARM_STEPS = 6
STEPS = 64


def make_model(torch, transformers):
    config = transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, head_dim=128, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0}, tie_word_embeddings=False,
        dtype=torch.bfloat16)
    torch.manual_seed(1)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(config)
    return model.eval()


class Decoding:
    """Steps of sequences whose caches hold a context."""

    def __init__(self, torch, transformers, model, num_sequences, context):
        self.torch, self.model = torch, model
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=context + WARM_STEPS + STEPS)
        self.position = context
        prompt = torch.randint(model.config.vocab_size, (num_sequences, context), device="cuda")
        for first in range(0, context, 256):  # in chunks, whose logits fit
            self.forward(model, prompt[:, first:first + 256], first)
        self.tokens = prompt[:, -1:]

    def forward(self, model, tokens, first):
        positions = self.torch.arange(first, first + tokens.shape[1], device="cuda")
        return model(
            tokens, past_key_values=self.cache, cache_position=positions, position_ids=positions.unsqueeze(0),
            use_cache=True, logits_to_keep=1).logits

    def step(self, compiled):
        logits = self.forward(compiled, self.tokens, self.position)
        self.tokens = logits[:, -1:].argmax(-1)
        self.position += 1
        self.torch.cuda.synchronize()


def measure(torch, transformers, model, num_sequences, context):
    torch.compiler.reset()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)
    decoding = Decoding(torch, transformers, model, num_sequences, context)
    times = []
    for index in range(WARM_STEPS + STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        began = time.perf_counter()
        decoding.step(compiled)
        times.append(time.perf_counter() - began)
    return statistics.median(times[WARM_STEPS:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", help="what device_step wrote")
    parser.add_argument("both", nargs="?", help="a file for the figures of both")
    options = parser.parse_args()
    try:
        import torch
        import transformers
    except ImportError as missing:
        print(f"transformers_step.py: {missing}, so nothing was measured")
        return 77
    figures = json.load(open(options.ours))
    figures |= {"transformers_version": transformers.__version__}
    figures["transformers"] = [{"sequences": row["sequences"], "seconds": None} for row in figures["rows"]]  # until measured
    with torch.inference_mode():
        model = make_model(torch, transformers)
        print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n")
        print("| sequences | pagedkv, ms | transformers, ms | transformers / pagedkv |")
        print("| --- | --- | --- | --- |", flush=True)
        for row, found in zip(figures["rows"], figures["transformers"]):
            count, seconds = row["sequences"], row["seconds"]
            theirs = found["seconds"] = measure(torch, transformers, model, count, figures["context"])
            print(f"| {count} | {seconds * 1e3:.3f} | {theirs * 1e3:.3f} | {theirs / seconds:.2f} |", flush=True)
            if options.both:
                with open(options.both + ".new", "w") as file:
                    json.dump(figures, file)
                os.replace(options.both + ".new", options.both)
    return 0


if __name__ == "__main__":
    sys.exit(main())
