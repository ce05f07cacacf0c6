#!/usr/bin/env python3
"""A tier in files beside fio, on the same file at equal sizes and depths, in one run: GB/s.

With `fio` installed. The two take turns; the fastest and the median round of each are compared, since other users of a shared
disk come and go."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

import records

ENGINES = {"io_uring": ("io_uring",), "threads": ("psync", "--thread")}
SHAPES = [(64 << 10, 32), (256 << 10, 32), (1 << 20, 32), (64 << 10, 1)]


def output_of(*command, **environment):
    done = subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})
    return json.loads(done.stdout)


def pagedkv(program, path, direction, engine, size, depth):
    pattern = f"^{direction}/{engine}/bytes:{size}/depth:{depth}/"
    options = (f"--benchmark_filter={pattern}", "--benchmark_format=json", "--benchmark_min_time=0.5")
    return output_of(program, *options, PAGEDKV_FILE=path)["benchmarks"][0]["bytes_per_second"]


def fio(path, direction, engine, size, depth):
    name, *more = ENGINES[engine]
    # Without a queue of its own, an engine is as deep as it has threads.
    more += [f"--iodepth={depth}"] if name == "io_uring" else [f"--numjobs={depth}", "--group_reporting"]
    job = ["--name=peer", f"--filename={path}", "--offset=4096", "--size=1000m", "--direct=1", f"--ioengine={name}"]
    job += [f"--rw=rand{direction}", f"--bs={size}", "--runtime=1", "--time_based", "--output-format=json", *more]
    return output_of("fio", *job)["jobs"][0][direction]["bw_bytes"]


def compare(program, path, rounds):
    """By engine, direction, size and depth, GB/s."""
    rows = {}
    for engine in ENGINES:
        for direction in ("read", "write"):
            for size, depth in SHAPES:
                print(f"{engine}, {direction}, {size >> 10} KiB x {depth} …", flush=True)
                ours, theirs = [], []
                for _ in range(rounds):
                    ours.append(pagedkv(program, path, direction, engine, size, depth) / 1e9)
                    theirs.append(fio(path, direction, engine, size, depth) / 1e9)
                figures = rows[records.name_of(engine, direction, f"{size >> 10} KiB", depth)] = {}
                for kind, of in (("fastest", max), ("median", statistics.median)):
                    us, them = of(ours), of(theirs)
                    figures |= {f"pagedkv_{kind}": us, f"fio_{kind}": them, f"ratio_{kind}": us / them}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="of bench/tier")
    parser.add_argument("path", help="of a file on the disk to measure, for 1 GiB")
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path, help="a file for the figures")
    options = parser.parse_args()
    rows = compare(options.program, options.path, options.rounds)
    os.remove(options.path)
    version = subprocess.run(["fio", "--version"], check=True, capture_output=True, text=True).stdout.strip().replace("-", " ")
    records.report({"peer_files": rows}, [version], options.json)


if __name__ == "__main__":
    main()
