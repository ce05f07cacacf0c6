"""Folders with random weights, as examples/llama reads them: for measurements, whose times do not depend on the numbers."""

import json
import math
import struct
from array import array

CONFIG = {"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": True, "eos_token_id": 2}


def shapes(config):
    """Of each weight, by its name."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    of_layer = {
        "input_layernorm": (hidden,), "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden), "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries), "post_attention_layernorm": (hidden,), "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    made = {"model.embed_tokens": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    return made | {f"model.layers.{i}.{name}": shape for i in range(config["num_hidden_layers"]) for name, shape in of_layer.items()}


def write(folder, sizes, draw):
    """`draw` gives so many random numbers, as the bytes of float32. Norms are ones."""
    config = CONFIG | sizes
    header, data, begin = {}, [], 0
    for name, shape in shapes(config).items():
        data.append(draw(math.prod(shape)) if len(shape) == 2 else array("f", [1]) * shape[0])
        end = begin + 4 * math.prod(shape)
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"".join([struct.pack("<Q", len(text)), text, *data]))
