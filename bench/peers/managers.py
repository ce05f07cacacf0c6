#!/usr/bin/env python3
"""vLLM's and SGLang's managers of blocks beside this library's cache, on the same work, in turns, as a table in Markdown.

Their wheels come unmodified from PyPI, with what they import (4 GB), into build/peers. `requests` are those of a trace, one at
a time, with up to 32 decode steps, in a pool of a tenth of their distinct blocks; the others are operations alone. Each figure
is the best of the rounds.

Exit status: 0 compared, 1 a manager failed, 77 there is no trace or a package cannot be had.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent / "managers"
FOLDER = ROOT / "build" / "peers"
PYTHON = FOLDER / "venv" / "bin" / "python"
IMPORTED = """torch numpy msgspec cbor2 xxhash blake3 pybase64 psutil packaging regex requests tqdm pyzmq pydantic cloudpickle
transformers aiohttp fastapi orjson einops cachetools prometheus_client pyyaml openai setproctitle pillow tiktoken safetensors
huggingface_hub py-cpuinfo sentencepiece protobuf partial-json-parser dill uvloop openai_harmony ipython lm-format-enforcer
llguidance outlines_core mistral_common msgpack watchfiles numba gguf cffi nvidia-ml-py compressed-tensors depyf ijson lark
jsonschema anthropic mcp torch_memory_saver xgrammar python-multipart pycountry interegular""".split()
ROWS = [
    ("a request, blocks of 16", lambda found: found["requests_16"]["request_us"]),
    ("a request, blocks of 512", lambda found: found["requests_512"]["request_us"]),
    ("a decode step, blocks of 16", lambda found: found["requests_16"]["step_us"]),
    ("a decode step, blocks of 512", lambda found: found["requests_512"]["step_us"]),
    ("look up and hold 131,072 tokens, blocks of 16", lambda found: found["look_up_16"]),
    ("look up and hold 131,072 tokens, blocks of 512", lambda found: found["look_up_512"]),
    ("replace 1,000 of 100,000 blocks of 16", lambda found: found["replace_16"]),
    ("replace 1,000 of 100,000 blocks of 512", lambda found: found["replace_512"]),
    ("a token more in 1,024 rows of 8,192, with tables", lambda found: found["batch_step"]),
]


def install(versions):
    if not PYTHON.exists():
        venv.create(FOLDER / "venv", with_pip=True)
    pip = [PYTHON, "-m", "pip", "install", "-q"]
    for package, version in versions.items():
        target = FOLDER / f"{package}-{version}"
        if not target.exists():
            subprocess.run([*pip, "--no-deps", "--target", target, f"{package}=={version}"], check=True)
    if not (FOLDER / "installed").exists():
        subprocess.run([*pip, *IMPORTED], check=True)
        subprocess.run([*pip, "--no-deps", "torchvision"], check=True)
        (FOLDER / "installed").touch()


def compile_ours():
    program = FOLDER / "pagedkv_manager"
    subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-DNDEBUG", f"-I{ROOT / 'include'}",
                    HERE / "pagedkv_manager.cpp", "-o", program, "-lxxhash", "-pthread"], check=True)
    return program


def run(command, folder=None):
    environment = dict(os.environ, PYTHONPATH=f"{folder}:{HERE}") if folder else None
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def best_of(rounds):
    """By row, the least of the rounds."""
    return [min(figure(found) for found in rounds) for _, figure in ROWS]


def table(found):
    """`found`: by name, the rounds; the first is ours."""
    ours, *others = found
    figures = {name: best_of(rounds) for name, rounds in found.items()}
    lines = ["| µs | " + " | ".join(found) + " | " + " | ".join(f"ratio to {name}" for name in others) + " |",
             "|---" * (1 + len(found) + len(others)) + "|"]
    for row, (title, _) in enumerate(ROWS):
        times = [f"{figures[name][row]:.3g}" for name in found]
        ratios = [f"{figures[name][row] / figures[ours][row]:.3g}" for name in others]
        lines.append(f"| {title} | " + " | ".join(times + ratios) + " |")
    return "\n".join(lines)


def same_hits(found):
    """Sentences on the cached tokens of each request."""
    ours, *others = found
    for size in (16, 512):
        expected = found[ours][0][f"requests_{size}"]["hits"]
        yield f"Blocks of {size}: {ours} found {sum(expected):,} tokens cached in {len(expected):,} requests."
        for name in others:
            hits = found[name][0][f"requests_{size}"]["hits"]
            differ = sum(a != b for a, b in zip(hits, expected))
            yield f"{name} found {sum(hits):,}, and another number in {differ:,} requests."


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=pathlib.Path, default=ROOT / "../shared/traces/conversation_trace.jsonl")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", default="0.33.0", help="version")
    parser.add_argument("--sglang", default="0.5.23", help="version")
    options = parser.parse_args()
    if not options.trace.exists():
        print(f"skipped: {options.trace} is missing")
        return 77
    try:
        install({"vllm": options.vllm, "sglang": options.sglang})
    except subprocess.CalledProcessError as error:
        print(f"skipped: {' '.join(map(str, error.cmd[:8]))} failed")
        return 77
    work = [options.trace, str(options.requests)]
    found = {"pagedkv": [], f"vLLM {options.vllm}": [], f"SGLang {options.sglang}": []}
    ours, theirs, others = found.values()
    program = compile_ours()
    for _ in range(options.rounds):
        ours.append(run([program, *work]))
        theirs.append(run([PYTHON, HERE / "vllm_manager.py", *work], FOLDER / f"vllm-{options.vllm}"))
        others.append(run([PYTHON, HERE / "sglang_manager.py", *work], FOLDER / f"sglang-{options.sglang}"))
    print(table(found))
    print("\n" + "\n".join(same_hits(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
