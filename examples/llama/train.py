"""Trains the small model in examples/llama/model on the Jargon File, which is in the public domain.

The text is that of Debian's package dict-jargon: python3 examples/llama/train.py /usr/share/dictd OUTPUT. It needs torch,
tokenizers and safetensors, and takes some minutes on a GPU. Seeds are fixed and the algorithms deterministic, so that the
same versions on the same device give the same model; other versions and devices round differently.
"""

import argparse
import gzip
import json
import os
import pathlib
import random
import re
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import safetensors.torch
import tokenizers
import torch
from torch import nn
from torch.nn import functional

CONTEXT = 512
LONGEST_ANSWER = 900  # characters
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048, "hidden_size": 256,
    "intermediate_size": 592, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 2,
    "dtype": "bfloat16",
}
START, USER, END, ANSWER = "<|start|>", "<|user|>", "<|end|>", "<|answer|>"
SPECIAL = [START, USER, END, ANSWER]
QUESTIONS = ["What is {}?", "what is {}?", "What does {} mean?", "Define {}.", "define {}", "Tell me about {}.",
             "{}?", "{}", "Explain {}.", "What is a {}?", "what's {}?", "Do you know {}?"]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def number_of(text):
    value = 0
    for letter in text:
        value = value * 64 + LETTERS.index(letter)
    return value


def read_entries(folder):
    """Headwords and their definitions, cut at the end of a sentence."""
    text = gzip.open(folder / "jargon.dict.dz").read()
    entries = {}
    for line in (folder / "jargon.index").read_text(encoding="utf-8", errors="replace").splitlines():
        word, start, length = line.split("\t")
        if word.startswith("00-database"):
            continue
        start, length = number_of(start), number_of(length)
        body = text[start:start + length].decode("utf-8", errors="replace")
        first, _, rest = body.partition("\n")
        answer = re.sub(r"\s+", " ", rest).replace("{", "").replace("}", "").strip()
        if len(answer) > LONGEST_ANSWER:
            cut = answer[:LONGEST_ANSWER]
            answer = cut[: cut.rfind(". ") + 1] or cut
        if len(answer) > 20:
            entries.setdefault(first.strip() or word, answer)
    return sorted(entries.items())


def train_tokenizer(entries):
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=CONFIG["vocab_size"], special_tokens=SPECIAL, show_progress=False,
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    texts = [word for word, _ in entries] + [answer for _, answer in entries] + QUESTIONS
    made.train_from_iterator(texts, trainer)
    return made


class attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, dim = CONFIG["hidden_size"], CONFIG["head_dim"]
        self.q_proj = nn.Linear(hidden, CONFIG["num_attention_heads"] * dim, bias=False)
        self.k_proj = nn.Linear(hidden, CONFIG["num_key_value_heads"] * dim, bias=False)
        self.v_proj = nn.Linear(hidden, CONFIG["num_key_value_heads"] * dim, bias=False)
        self.o_proj = nn.Linear(CONFIG["num_attention_heads"] * dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        def heads(y):
            return y.unflatten(-1, (-1, CONFIG["head_dim"])).transpose(1, 2)

        def turn(y):
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat((-second, first), -1) * sin

        q, k, v = turn(heads(self.q_proj(x))), turn(heads(self.k_proj(x))), heads(self.v_proj(x))
        repeated = CONFIG["num_attention_heads"] // CONFIG["num_key_value_heads"]
        k, v = k.repeat_interleave(repeated, 1), v.repeat_interleave(repeated, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class feed(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        self.self_attn = attention()
        self.post_attention_layernorm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        self.mlp = feed()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        self.layers = nn.ModuleList(layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = nn.RMSNorm(CONFIG["hidden_size"], CONFIG["rms_norm_eps"])
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = 0.02 / (2 * CONFIG["num_hidden_layers"]) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
                nn.init.normal_(parameter, std=scale)
        frequencies = CONFIG["rope_theta"] ** (-torch.arange(0, CONFIG["head_dim"], 2) / CONFIG["head_dim"])
        angles = torch.outer(torch.arange(CONTEXT).float(), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for each in self.layers:
            x = each(x, self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]])
        return functional.linear(self.norm(x), self.embed_tokens.weight)


def question(generator, word):
    if generator.random() < 0.4:
        word = word.lower()
    return generator.choice(QUESTIONS).format(word)


def make_epoch(entries, tokenizer, generator):
    """Conversations of several questions, each as long as the context; only answers count."""
    order = list(entries)
    generator.shuffle(order)
    texts = [(question(generator, word), answer) for word, answer in order]
    coded = tokenizer.encode_batch([part for pair in texts for part in pair])
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    rows, masks, row, mask = [], [], [ids[START]], [False]
    for i in range(len(texts)):
        asked, answered = coded[2 * i].ids, coded[2 * i + 1].ids
        turn = [ids[USER], *asked, ids[END], ids[ANSWER], *answered, ids[END]]
        counted = [False] * (len(asked) + 3) + [True] * (len(answered) + 1)
        if len(row) + len(turn) > CONTEXT + 1 or generator.random() < 0.2:
            rows.append(row + [ids[END]] * (CONTEXT + 1 - len(row)))
            masks.append(mask + [False] * (CONTEXT + 1 - len(mask)))
            row, mask = [ids[START]], [False]
        row, mask = row + turn, mask + counted
        row, mask = row[: CONTEXT + 1], mask[: CONTEXT + 1]
    return torch.tensor(rows), torch.tensor(masks)


def train(entries, tokenizer, seconds, epochs):
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)  # with warnings only, the gradient of attention on a GPU has no fixed order of sums
    generator = random.Random(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformer().to(device)
    print(sum(p.numel() for p in model.parameters()), "weights;", len(entries), "entries", flush=True)
    compiled = torch.compile(model) if device == "cuda" else model
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0}], lr=1, betas=(0.9, 0.98),
                                  fused=device == "cuda")
    started, batch = time.time(), 16
    for epoch in range(epochs):
        tokens, counted = make_epoch(entries, tokenizer, generator)
        tokens, counted = tokens.to(device), counted.to(device)
        total = 0.0
        for i in range(0, len(tokens) - batch + 1, batch):
            done = (epoch + i / len(tokens)) / epochs
            rate = 3e-3 * min(1, done * 50) * (1 - done) + 1e-5
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast(device, torch.bfloat16):
                logits = compiled(tokens[i:i + batch, :-1])
            targets = tokens[i:i + batch, 1:].masked_fill(~counted[i:i + batch, 1:], -100)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.detach()
        if epoch % 10 == 0 or epoch + 1 == epochs:
            print(f"epoch {epoch}: loss {float(total) / max(1, len(tokens) // batch):.3f}, {time.time() - started:.0f} s", flush=True)
        if seconds and time.time() - started > seconds:
            raise SystemExit(f"{epochs} epochs do not end within {seconds} s")
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dictionary", type=pathlib.Path, help="folder with jargon.index and jargon.dict.dz")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--seconds", type=int, default=0, help="give up after so many")
    arguments = parser.parse_args()
    entries = read_entries(arguments.dictionary)
    tokenizer = train_tokenizer(entries)
    model = train(entries, tokenizer, arguments.seconds, arguments.epochs)
    arguments.output.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(arguments.output / "tokenizer.json"), pretty=False)
    (arguments.output / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    tensors = {f"model.{name}": p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in model.named_parameters()}
    safetensors.torch.save_file(tensors, arguments.output / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
