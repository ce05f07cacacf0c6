"""The tables of what the programs of bench/peers left: this library beside others, on the host. In the form of bench_tables.py."""

from bench_results import Shown
from report_rows import name_of

MANAGERS = ("vLLM", "SGLang")
SHAPES = [("decode, bfloat16, group size 1", "bfloat16", 1), ("decode, bfloat16, group size 8", "bfloat16", 8), ("decode, int8, group size 4", "int8", 4)]


def link(page, section):
    return f"[more]({page}#{section})"


def work(benchmark):
    """Microseconds of ours, and what others take of these."""
    return [benchmark, *([("peer_managers", benchmark, figure)] for figure in ("pagedkv_us", *(f"{name}_times" for name in MANAGERS)))]


def of_one_core(benchmark, *figures):
    return [("peer_attention", name_of(1, *benchmark), figure) for figure in figures]


# By name: the heading, and the rows.
TABLES = {
    "expected_managers": (
        ["beside other engines' managers", "pagedkv", *(f"{name} takes, times that" for name in MANAGERS), "more"],
        [
            [*work("a request, blocks of 16"), link("performance_host.md", "beside-other-engines-managers")],
            [*work("a decode step, blocks of 16"), ""],
            [*work("look up and hold 131,072 tokens, blocks of 16"), ""],
            [*work("a token more in 1,024 rows of 8,192, with tables"), ""],
        ],
    ),
    "expected_attention": (
        ["attention on the host, one core", "pagedkv", "PyTorch", "llama.cpp", "more"],
        [
            [
                f"{label}; GB/s",
                Shown(of_one_core((element, size), "pagedkv_GB/s", "read_GB/s"), lambda ours, read: f"{ours:.1f} of {read:.1f}"),
                *(of_one_core((element, size), f"{name}_GB/s") for name in ("PyTorch", "llama.cpp")),
                more,
            ]
            for (label, element, size), more in zip(SHAPES, [link("performance_host.md", "beside-other-libraries"), "", ""])
        ]
        + [
            [
                "a prompt of 2,048, bfloat16; GFLOP/s",
                *([("peer_prompts", name_of(1, "bfloat16", "2,048", "2,048"), f"{name}_GFLOP/s")] for name in ("pagedkv", "PyTorch")),
                "–",
                link("performance_host.md", "prompts"),
            ]
        ],
    ),
}

def rounds(**names):
    """Of these columns, the fastest round and the median one."""
    return {f"{label}: fastest, median": [f"{name}_{of}" for of in ("fastest", "median")] for name, label in names.items()}


# As report_rows takes them.
COLUMNS = {
    "peer_managers": (
        ["work"],
        {name: [f"{name}_us"] for name in ("pagedkv", *MANAGERS)} | {f"{name} / pagedkv": [f"{name}_times"] for name in MANAGERS},
    ),
    "peer_hits": (
        ["tokens found cached", "requests"],
        {"pagedkv": ["pagedkv_tokens"]} | {f"{name}, requests in which it differs": [f"{name}_tokens", f"{name}_differs"] for name in MANAGERS},
    ),
    "peer_attention": (
        ["cores", "element", "group size"],
        {"read": ["read_GB/s"]} | {name: [f"{name}_GB/s"] for name in ("pagedkv", "PyTorch", "llama.cpp")},
    ),
    "peer_prompts": (["cores", "element", "queries", "tokens"], {name: [f"{name}_GFLOP/s"] for name in ("pagedkv", "PyTorch")}),
    "peer_store": (
        ["values a second, of", "size"],
        rounds(pagedkv="pagedkv", benchmark_50x1="50 connections", benchmark_1x16="1 connection, 16 in flight", ratio="pagedkv / the better of these"),
    ),
    "peer_llama": (
        ["model", "threads", "sequences"],
        {name: [f"{name}_rate"] for name in ("pagedkv", "llama.cpp")} | {"llama.cpp / this engine": ["llama.cpp_times"]},
    ),
}
