"""Runs the programs of bench/engine with the model that the repository has, and with one of a single layer; and the tables and plots of
docs/llama.md, from their figures, in the form of bench_tables.py."""

import json
import os
import random
import subprocess
from array import array

import random_model
from bench_results import Shown

SPEEDS = (0.25, 0.5, 1, 2, 4)
TURNS = 10
# Requests at once, and the tokens of each: of its prompt, of its answer. The last ones run on a model of one layer.
RUNNING = {"running/64": (64, 32, 200), "running/256": (256, 16, 100), "one_layer/100": (256, 16, 100), "one_layer/1500": (256, 16, 1500)}
ONE_LAYER = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
             "head_dim": 8, "vocab_size": 64}  # fmt: skip


def at_once(num_requests, *tokens):
    """Lines of a trace in which all requests arrive at once, and share nothing. 512 tokens of a trace stand for 16."""
    prompt, answer = (32 * count for count in tokens)
    lines = ({"timestamp": 0, "input_length": prompt, "output_length": answer, "hash_ids": [2 * i, 2 * i + 1]} for i in range(num_requests))
    return "".join(json.dumps(line) + "\n" for line in lines)


def runs(trace, folder):
    """By name: the program, its options, and the name of each row of its report, by its number and contents."""
    made = {
        "stored": ("engine_stored", [], lambda _, row: f"stored/{row['stored_as']}"),
        "turns": ("engine_turns", ["--file", folder / "blocks.kv"], lambda number, _: f"turns/{number}"),
        "load": (
            "engine_load",
            ["--trace", trace, "--limit", "300", "--speed", ",".join(map(str, SPEEDS))],
            lambda _, row: f"load/{row['speed']:g}",
        ),
    }
    for name, (count, *tokens) in RUNNING.items():
        path = folder / f"{name.replace('/', '_')}.jsonl"
        path.write_text(at_once(count, *tokens))
        options = ["--trace", path, "--rows", str(count), "--budget", "4096"]
        options += ["--model", folder / "one_layer", "--blocks", "32768"] if is_small(name) else []
        made[name] = ("engine_load", options, lambda *_, name=name: name)
    return made


def is_small(name):
    return name.startswith("one_layer")


def flat(row):
    """Numbers of an object, and of those in it, as `first_token_ms.p50`."""
    found = {}
    for name, value in row.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": number for inner, number in flat(value).items()}
        elif type(value) in (int, float):
            found[name] = value
    return found


def figures(rows, name_of):
    return {name_of(number, row): flat(row) for number, row in enumerate(rows, 1)}


def run(programs, trace, folder):
    """The figures by benchmark, and errors by run. Turns, and the small model, run with one thread of BLAS."""
    results, errors = {}, {}
    numbers = random.Random(1)
    random_model.write(folder / "one_layer", ONE_LAYER, lambda count: array("f", (numbers.gauss(0, 0.05) for _ in range(count))))
    for name, (program, options, name_of) in runs(trace, folder).items():
        print(f"engine, {name} …", flush=True)
        report = folder / "engine_report.json"
        environment = os.environ | ({"OPENBLAS_NUM_THREADS": "1"} if name == "turns" or is_small(name) else {})
        done = subprocess.run([programs / program, *options, "--json", report], capture_output=True, text=True, env=environment)
        if done.returncode == 0:
            results |= figures(json.loads(report.read_text()), name_of)
        else:
            errors[f"engine: {name}"] = done.stderr.strip() or f"{program} ended with status {done.returncode}"
    return results, errors


def cell(benchmark, *names, show=None):
    of = [("engine", benchmark, name) for name in names]
    return Shown(of, show) if show else of


def short(value):
    """Two digits; of small values as 4.8e-8."""
    return f"{value:.1e}".replace("e-0", "e-") if value < 1e-3 else f"{value:.2g}"


def milliseconds(value):
    return f"{value:.1f}" if value >= 0.1 else f"{value:.2f}"


def turn(history, number, part):
    of = f"turns/{number}"
    times = [cell(of, f"{part}.{name}", show=milliseconds) for name in ("first_token_ms", "in_model_ms", "in_cache_ms")]
    waiting = cell(of, f"{part}.other_ms", show=milliseconds) if part == "restarted" else ""
    return [history, str(number), cell(of, f"{part}.cached_tokens"), *times, waiting]


def percent(value):
    return f"{100 * value:.2f} %"


def running(names):
    """The time of the cache in a step of requests that all run at once."""
    rows = []
    for name in names:
        count, prompt, answer = RUNNING[name]
        times = [cell(name, figure) for figure in ("cache_us_per_step", "cache_median_us")]
        rows.append([str(count), f"{prompt} to {prompt + answer:,}", *times, cell(name, "cache_share", show=percent)])
    return ["running requests", "tokens of each", "cache management, a step: mean", "median", "share of the step"], rows


TABLES = {
    "stored": (
        [
            "K and V",
            "largest difference of a logit, in shares of the largest one",
            "relative entropy of the next token, mean",
            "same most likely token",
        ],
        [
            [
                stored,
                cell(f"stored/{stored}", "largest", show=short),
                cell(f"stored/{stored}", "relative_entropy", show=lambda nats: f"{short(nats)} nats"),
                cell(f"stored/{stored}", "same_best", show=lambda share: f"{100 * share:.4g} %"),
            ]
            for stored in ("float16", "bfloat16", "int8", "float8")
        ],
    ),
    "turns": (
        ["history", "turn", "cached tokens", "first token, ms", "model", "calls of the cache", "waiting for the file"],
        [turn(history, number, part) for history, part in (("in the pool", "cached"), ("in a file", "restarted")) for number in (2, TURNS)],
    ),
    "load": (
        ["offered requests a second", "served", "output tokens a second", "first token: p50, p99", "between tokens: p50, p99"]
        + ["cache management, a step", "share of the step"],
        [
            [
                cell(f"load/{speed:g}", "offered_requests_per_second", show="{:.2f}".format),
                cell(f"load/{speed:g}", "requests_per_second", show="{:.2f}".format),
                cell(f"load/{speed:g}", "output_tokens_per_second", show="{:.0f}".format),
                cell(f"load/{speed:g}", "first_token_ms.p50", "first_token_ms.p99"),
                cell(f"load/{speed:g}", "between_tokens_ms.p50", "between_tokens_ms.p99"),
                cell(f"load/{speed:g}", "cache_us_per_step"),
                cell(f"load/{speed:g}", "cache_share", show=percent),
            ]
            for speed in SPEEDS
        ],
    ),
    "running": running(name for name in RUNNING if not is_small(name)),
    "running_one_layer": running(name for name in RUNNING if is_small(name)),
}

PLOTS = {
    "turns": (
        ("turn", "milliseconds to the first token"),
        {
            label: {number: ("engine", f"turns/{number}", f"{part}.first_token_ms") for number in range(1, TURNS + 1)}
            for label, part in (("nothing cached", "computed"), ("in a file, after a restart", "restarted"), ("in the pool", "cached"))
        },
    ),
    "load": (
        ("speed of arrivals, times the trace's", "milliseconds"),
        {
            f"{label}, {quantile}": {speed: ("engine", f"load/{speed:g}", f"{name}_ms.{quantile}") for speed in SPEEDS}
            for label, name in (("time to first token", "first_token"), ("time between tokens", "between_tokens"))
            for quantile in ("p50", "p99")
        },
    ),
}
SCALES = {"turns": {"xscale": "linear", "yscale": "linear", "ylim": (0, None)}}
