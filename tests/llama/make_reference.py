"""Writes reference.json: the greedy tokens that `transformers` generates with small models of each architecture, and with
the trained model in examples/llama/model; the tokens of texts by `tokenizers`.

Run it with torch and transformers installed: python3 tests/llama/make_reference.py > tests/llama/reference.json
Weights are not stored: `number` below makes them from the names of the tensors, and the tests make them in the same way.
"""

import json
import pathlib
import sys

import numpy
import tokenizers
import torch
import transformers

GAP = 1e-3  # between the largest logits: rounding in another order changes no token

SIZES = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
CONFIGS = {
    "llama": transformers.LlamaConfig(
        **SIZES, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64}),
    "mistral": transformers.MistralConfig(
        **SIZES, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, sliding_window=24),
    "phi3": transformers.Phi3Config(
        **SIZES, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        original_max_position_embeddings=36,
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0],
                         "long_factor": [1.0, 1.2, 1.6, 2.4, 4.0, 7.0, 12.0, 20.0]}),
    "qwen3": transformers.Qwen3Config(
        **SIZES, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=32, tie_word_embeddings=True,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 128}),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES, num_hidden_layers=5, num_attention_heads=2, num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=128,
        sliding_window=24, max_position_embeddings=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}),
    "bamba": transformers.BambaConfig(
        **SIZES, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, attn_layer_indices=[1, 3],
        mamba_n_heads=8, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_chunk_size=16, max_position_embeddings=512),
}


def draw(name, count):
    """Numbers in [-1, 1): SplitMix64 (Steele and others, 2014), seeded with the FNV-1a hash of the tensor's name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    with numpy.errstate(over="ignore"):
        z = numpy.uint64(seed) + numpy.arange(1, count + 1, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        z = z ^ (z >> numpy.uint64(31))
    return (z >> numpy.uint64(40)).astype(numpy.float32) / numpy.float32(2**23) - numpy.float32(1)


def weights(name, shape):
    """Matrices enlarge what they multiply, so that tokens vary; embeddings are small beside; vectors are close to one."""
    numbers = draw(name, int(numpy.prod(shape)))
    if len(shape) == 1:
        numbers = numpy.float32(1) + numbers * numpy.float32(0.25)
    else:
        numbers = numbers * numpy.float32((0.5 if "embed" in name else 3.0) / shape[-1] ** 0.5)
    return torch.from_numpy(numbers.reshape(shape))


def prompt_of(length, seed):
    return [int(abs(number) * 255.99) for number in draw(f"prompt {length} {seed}", length)]


def generate(model, prompt, count):
    """Greedy tokens and the smallest gap between the two largest logits, each from a pass over all tokens so far."""
    tokens, gap = list(prompt), float("inf")
    for _ in range(count):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        gap = min(gap, float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
    return tokens[len(prompt):], gap


def reference(name, config):
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    shapes = {}
    for key, parameter in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        shapes[key] = list(parameter.shape)
        parameter.copy_(weights(key, shapes[key]))
    model.tie_weights()
    cases = []
    for length, count in ((1, 40), (7, 40), (33, 40), (90, 60), (150, 40)):
        seed = 0
        while True:
            prompt = prompt_of(length, seed)
            tokens, gap = generate(model, prompt, count)
            if gap > GAP:
                break
            seed += 1
        logits = model(torch.tensor([prompt])).logits[0, -1]
        cases.append({"prompt": prompt, "tokens": tokens, "logits": [float(x) for x in logits[:16]]})
        print(f"{name}: {length} tokens, seed {seed}, gap {gap:.4f}, {len(set(tokens))} different tokens", file=sys.stderr)
    return {"name": name, "config": json.loads(config.to_json_string(use_diff=False)), "shapes": shapes, "cases": cases}


TRAINED = pathlib.Path(__file__).parents[2] / "examples" / "llama" / "model"
TEXTS = ["What is a hacker?", "", " ", "  two  spaces, and\n\n lines\t", "naïve café — “quoted” … 東京 🙂", "it's we'll I'D 'tis",
         "x=3.14159; y[12345]+=0x7f", "<|user|>What?<|end|><|answer|>", "trailing space "]
QUESTIONS = ["What is a hacker?", "Define foo.", "kluge"]


def trained_reference():
    words = tokenizers.Tokenizer.from_file(str(TRAINED / "tokenizer.json"))
    model = transformers.AutoModelForCausalLM.from_pretrained(TRAINED, dtype=torch.float32, attn_implementation="eager").eval()
    cases = []
    for asked in QUESTIONS:
        prompt = words.encode(f"<|start|><|user|>{asked}<|end|><|answer|>").ids
        tokens, gap = generate(model, prompt, 60)
        cases.append({"prompt": prompt, "tokens": tokens})
        print(f"trained: {asked} gap {gap:.4f}", file=sys.stderr)
    texts = [{"text": text, "tokens": words.encode(text).ids} for text in TEXTS]
    return {"cases": cases, "texts": texts}


def main():
    torch.manual_seed(0)
    with torch.no_grad():
        models = [reference(name, config) for name, config in CONFIGS.items()]
        trained = trained_reference()
    json.dump({"transformers": transformers.__version__, "models": models, "trained": trained}, sys.stdout, separators=(",", ":"))
    print()


if __name__ == "__main__":
    main()
