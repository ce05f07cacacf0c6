#!/usr/bin/env python3
"""A remote tier beside the store's own benchmark, at equal sizes of values, in one run: values a second.

With Valkey or Redis installed; the server runs on a loopback port of its own and
is stopped. Its benchmark has 50 connections with 1 request in flight each, its default, or 1 connection with 16, as the tier has. All take
turns; the fastest and the median round of each are compared, the tier's with the better of the benchmark's two."""

import argparse
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile

import records

SIZES = [16 << 10, 128 << 10, 1 << 20]
SHAPES = [(50, 1), (1, 16)]  # connections, requests in flight on each
NUM_KEYS = 64
BYTES = 1 << 29  # that the store's benchmark moves in each round


def store():
    """The names of the server and of its benchmark."""
    for name in ("valkey", "redis"):
        if shutil.which(f"{name}-server") and shutil.which(f"{name}-benchmark"):
            return f"{name}-server", f"{name}-benchmark"
    sys.exit("neither Valkey nor Redis is installed with its benchmark")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def pagedkv(program, port, verb, size):
    options = (f"--benchmark_filter=^remote/{verb}/bytes:{size}/", "--benchmark_format=json", "--benchmark_min_time=0.4")
    environment = {**os.environ, "PAGEDKV_STORE": f"redis://127.0.0.1:{port}"}
    done = subprocess.run([program, *options], check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)["benchmarks"][0]["items_per_second"]


def own_benchmark(program, port, verb, size, connections, depth):
    options = ["-p", port, "-t", verb, "-d", size, "-c", connections, "-P", depth, "-n", min(BYTES // size, 20_000), "-r", NUM_KEYS, "--csv"]
    done = subprocess.run([program, *map(str, options)], check=True, capture_output=True, text=True)
    return float(done.stdout.splitlines()[-1].split(",")[1].strip('"'))


def compare(program, benchmark, port, rounds):
    """By verb and size, values a second."""
    rows = {}
    for size in SIZES:
        for verb in ("set", "get"):  # which gets what was set
            print(f"{verb.upper()} {size >> 10} KiB …", flush=True)
            ours, theirs = [], {shape: [] for shape in SHAPES}
            for _ in range(rounds):
                ours.append(pagedkv(program, port, verb, size))
                for shape in SHAPES:
                    theirs[shape].append(own_benchmark(benchmark, port, verb, size, *shape))
            figures = rows[records.name_of(verb.upper(), f"{size >> 10} KiB")] = {}
            for kind, of in (("fastest", max), ("median", statistics.median)):
                by_shape = {f"benchmark_{connections}x{depth}_{kind}": of(rates) for (connections, depth), rates in theirs.items()}
                figures |= {f"pagedkv_{kind}": of(ours)} | by_shape | {f"ratio_{kind}": of(ours) / max(by_shape.values())}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="of the benchmark of remote tiers")
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    server, benchmark = store()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", folder],
                                   stdout=subprocess.PIPE, text=True)
        try:
            while "Ready to accept connections" not in (line := process.stdout.readline()):
                if not line:
                    sys.exit(f"{server} does not start")
            rows = compare(options.program, benchmark, port, options.rounds)
        finally:
            process.kill()
            process.wait()
    version = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout.partition("v=")[2].split()[0]
    records.report({"peer_store": rows}, [f"{server} {version}"], options.json)


if __name__ == "__main__":
    main()
