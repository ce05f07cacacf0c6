#!/usr/bin/env python3
"""vLLM's and SGLang's managers of blocks beside this library's cache, on the same work, in turns.

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

import records

ROOT = records.ROOT
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


def times(found):
    """By row, the least time of the rounds, and how much longer others take. `found`: by name, the rounds; the first is ours."""
    ours, *others = found
    rows = {}
    for title, figure in ROWS:
        least = {name: min(map(figure, rounds)) for name, rounds in found.items()}
        rows[title] = {f"{name}_us": time for name, time in least.items()} | {f"{name}_times": least[name] / least[ours] for name in others}
    return rows


def hits(found):
    """Tokens found cached, and the number of requests in which others find another number than ours."""
    ours, *others = found
    rows = {}
    for size in (16, 512):
        by_name = {name: rounds[0][f"requests_{size}"]["hits"] for name, rounds in found.items()}
        row = rows[records.name_of(f"blocks of {size}", f"{len(by_name[ours]):,}")] = {}
        for name, cached in by_name.items():
            row[f"{name}_tokens"] = sum(cached)
        for name in others:
            row[f"{name}_differs"] = sum(a != b for a, b in zip(by_name[name], by_name[ours]))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=pathlib.Path, default=ROOT / "../shared/traces/conversation_trace.jsonl")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", default="0.33.0", help="version")
    parser.add_argument("--sglang", default="0.5.23", help="version")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
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
    found = {"pagedkv": [], "vLLM": [], "SGLang": []}
    ours, theirs, others = found.values()
    program = compile_ours()
    for _ in range(options.rounds):
        ours.append(run([program, *work]))
        theirs.append(run([PYTHON, HERE / "vllm_manager.py", *work], FOLDER / f"vllm-{options.vllm}"))
        others.append(run([PYTHON, HERE / "sglang_manager.py", *work], FOLDER / f"sglang-{options.sglang}"))
    versions = [f"vLLM {options.vllm}", f"SGLang {options.sglang}"]
    records.report({"peer_managers": times(found), "peer_hits": hits(found)}, versions, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
