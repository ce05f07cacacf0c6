"""Tables and plots of documents: which figure of which benchmark each cell and each point has. Pages hold tables between
`<!-- table NAME -->` and `<!-- end -->`, and show plots as `images/NAME.svg`.

A cell is text, a list of figures (area, benchmark, figure), or such a list with a way to show it (`Shown`). Benchmarks are
named without iterations and kinds of time; `backend on 2` ran on two cores."""

import re

import bench_results
import device_tables
import engine_tables
import eviction_tables
import peer_tables
import report_rows


def cache(benchmark, *figures):
    return [("cache", benchmark, figure) for figure in figures]


def tier(benchmark):
    return [[("tier", benchmark, figure)] for figure in ("ratio", "best", "best_ns")]


def attention(cores, benchmark, *figures):
    return [(f"backend on {cores}", benchmark, figure) for figure in figures]


def runs(policy, num_blocks, figure, benchmark="replay_trace"):
    return [("requests", f"{benchmark}<{policy}>/{num_blocks}", figure)]


def with_and_without_runs(num_blocks, *figures, benchmark="replay_trace"):
    return [runs(policy, num_blocks, figure, benchmark) for figure in figures for policy in ("contiguous_runs", "single_thread")]


def hit_ratios(figures):
    return bench_results.Shown(figures, lambda *ratios: ", ".join(map(eviction_tables.share, ratios)))


def hits_with_tier(trace, num_blocks):
    """With host memory and its device's part, and of a device as large."""
    of = f"replay_with_tier/{trace}/{num_blocks}"
    return [hit_ratios([("requests", of, figure) for figure in figures]) for figures in (("hit_ratio", "on_device"), ("of_large_device",))]


def shared(benchmark, threads, figure="items_per_second"):
    return [("concurrency", f"{benchmark}/threads:{threads}", figure)]


def by_threads(name, policies, suffix=""):
    """Rows of a benchmark under the policy for one thread and under these, by the number of threads."""
    return [
        [str(threads), [("concurrency", f"{name}<single_thread{suffix}>", "items_per_second")] if threads == 1 else "–"]
        + [shared(f"{name}<{policy}{suffix}>", threads) for policy in policies]
        for threads in (1, 2, 4, 8, 16)
    ]


def link(section):
    return f"[more](performance_host.md#{section})"


LOOK_UPS = [
    ("`single_thread`", "look_up_under<kv_cache<single_thread>>/16"),
    ("blocks of 512", "look_up_under<kv_cache<single_thread>>/512"),
    ("`rw_lock`", "look_up_under<kv_cache<rw_lock>>/16"),
    ("`sharded_mutex`", "look_up_under<kv_cache<sharded_mutex>>/16"),
    ("`lock_free`, `clock_sweep`", "look_up_under<kv_cache<lock_free, clock_sweep>>/16"),
    ("every block at a random place, pool for four such prompts", "look_up_scattered<kv_cache<single_thread>>/prompts:4"),
    ("every block at a random place, pool for twelve such prompts", "look_up_scattered<kv_cache<single_thread>>/prompts:12"),
    ("a newer branch behind every 16th block", "look_up_beside_newer_branches<kv_cache<single_thread>>/every:16"),
    ("a newer branch behind every 4th block", "look_up_beside_newer_branches<kv_cache<single_thread>>/every:4"),
    ("a newer branch behind every block", "look_up_beside_newer_branches<kv_cache<single_thread>>/every:1"),
    ("a key in every 64th block", "look_up_with_keys"),
    ("hashes known to the caller", "look_up_with_hashes"),
    ("`group_cache`, one group", "look_up_in_a_group<single_thread>"),
    ("`group_cache` under `sharded_mutex`", "look_up_in_a_group<sharded_mutex>"),
]
PLAIN_LOOK_UP = "look_up_under<kv_cache<single_thread>>/16"
ELEMENTS = ("float16", "bfloat16", "int8")
GROUP_SIZES = (1, 4, 8)
SHARED = ("flat_ms", "shared_ms", "flat_over_shared")
LOCKINGS = ("single_thread", "rw_lock", "sharded_mutex")
OF_THREADS = ("rw_lock", "sharded_mutex", "lock_free")
LATENCIES = ("p50_us", "p99_us", "p99.9_us")
CHANGES = [("grow", 0, "grow_own_us"), ("shrink, others free", 0, "shrink_own_us"), ("shrink, others cached; moves", 1, "shrink_own_us")]

# By name: the heading, and the rows.
TABLES = {
    "operations": (
        ["operation", "time"],
        [
            ["append a token, one sequence, inside a block", cache("append_inside_a_block<single_thread>", "ns")],
            ["append a token to each of 1,024 sequences, of which 64 take a block", cache("decode_step<single_thread>/turned_over:0", "append_ns")],
            ["commit a token, append the next and find its slot, in one call for these 1,024; a sequence", cache("decode_step<single_thread>/turned_over:0", "ns")],
            ["the same, where the 64 blocks replace others", cache("decode_step<single_thread>/turned_over:1", "ns")],
            ["create and release a sequence of one block", cache("create_and_release", "ns")],
            ["release a sequence of 131,072 cached tokens", cache(PLAIN_LOOK_UP, "release_us")],
            ["commit 131,072 new tokens", cache("commit_new_prompt/block_size:16/turnovers:10", "commit_us")],
            ["evict 1,000 blocks for a prompt, commit and release it", cache("replace_cached_blocks/block_size:16/turnovers:10", "us")],
            ["update a padded batch of 1,024 rows, one token later", cache("update_batch<padded_batch>", "update_us")],
            ["update a compressed batch of 1,024 rows, one token later", cache("update_batch<compressed_batch>", "update_us")],
            ["submit and finish a request of 3 tokens", [("requests", "submit_and_finish/tokens:3", "ns")]],
            ["submit and finish a request of 160 tokens", [("requests", "submit_and_finish/tokens:160", "ns")]],
            ["append a token through the tracker", [("requests", "append_through_the_tracker", "ns")]],
        ],
    ),
    "expected": (
        ["operations of the cache", "figure", ""],
        [
            ["append a token inside a block, one sequence", cache("append_inside_a_block<single_thread>", "ns"), link("operations-of-the-cache")],
            ["append a token to each of 1,000 sequences, of 100,000; a token", cache("append_to_each/100000", "of_1000_ns", "in_order_ns"), ""],
            ["create and release a sequence of one block", cache("create_and_release", "ns"), ""],
            ["submit and finish a request of 160 tokens", [("requests", "submit_and_finish/tokens:160", "ns")], ""],
            ["update a padded batch of 1,024 rows, one token later", cache("update_batch<padded_batch>", "update_us"), ""],
            ["commit 131,072 new tokens", cache("commit_new_prompt/block_size:16/turnovers:10", "commit_us"), ""],
            [
                "evict, allocate, publish and release a block, 10⁴ and 10⁷ blocks in the pool",
                cache("replace_by_blocks/num_blocks:10000", "ns") + cache("replace_by_blocks/num_blocks:10000000", "ns"),
                link("sizes"),
            ],
            ["retire a step, 4,194,304 blocks in the pool", cache("retire_a_step<single_thread, lru>/4194304", "ns"), link("steps-and-forecasts")],
            [
                "requests with one group, with an unused host tier, with one that gets what is evicted; times a plain cache's, pool of a tenth",
                cache("requests_by_kind/10", "groups_ratio", "idle_tier_ratio", "writing_tier_ratio"),
                link("groups-and-tiers-that-a-model-does-not-need"),
            ],
            [
                "1 GiB more of 8 GiB, and less with moved blocks, gpt-oss 120B, the cache's own time",
                cache("change_size_of_groups<single_thread>/model:0/cached:0", "grow_own_us")
                + cache("change_size_of_groups<single_thread>/model:0/cached:1", "shrink_own_us"),
                link("changes-of-size"),
            ],
            [
                "share of new blocks in runs of eight and more, pool of 18,279, with `contiguous_runs` and without",
                runs("contiguous_runs", 18279, "in_runs") + runs("single_thread", 18279, "in_runs"),
                link("contiguous-runs"),
            ],
        ],
    ),
    "expected_look_ups": (
        ["look-up of 131,072 cached tokens", "find", "create"],
        [[label, cache(name, "find_us"), cache(name, "create_us")] for label, name in LOOK_UPS[:5] + LOOK_UPS[6:7]],
    ),
    "append": (
        ["sequences", "order", "append a token to each, a token"],
        [
            ["1", "", cache("commit_inside_a_block", "append_ns")],
            ["1, and a commit that publishes nothing: the commit", "", cache("commit_inside_a_block", "commit_ns")],
            ["1,000", "of creation", cache("append_to_each/100000", "of_1000_ns")],
            ["10,000", "of creation", cache("append_to_each/10000", "in_order_ns")],
            ["100,000", "of creation", cache("append_to_each/100000", "in_order_ns")],
            ["100,000", "random", cache("append_to_each/100000", "shuffled_ns")],
        ],
    ),
    "twin": (
        ["evict a block", "time"],
        [
            ["where no block has a twin", cache("evict_beside_a_kept_twin", "without_ns")],
            ["beside such a block", cache("evict_beside_a_kept_twin", "block_ns")],
        ],
    ),
    "look_ups": (["", "find", "create"], [[label, cache(name, "find_us"), cache(name, "create_us")] for label, name in LOOK_UPS]),
    "comparison": (
        ["for comparison", "time"],
        [
            ["hash the prompt once", cache(PLAIN_LOOK_UP, "hash_us")],
            ["find a prompt of 1,600 tokens of which nothing is cached", cache("look_up_new_prompt<kv_cache<single_thread>>", "find_ns")],
        ],
    ),
    "sizes": (
        ["operation, of", "10⁴", "10⁵", "10⁶", "10⁷"],
        [
            [label, *(cache(f"{name}:{10**power}", "ns") for power in (4, 5, 6, 7))]
            for label, name in (
                ("evict, allocate, publish and release; a block, blocks in the pool", "replace_by_blocks/num_blocks"),
                ("look up, hold and release; a block", "hit_by_blocks/num_blocks"),
                ("look up; a block", "find_by_blocks/num_blocks"),
                ("compute and release a prompt; a token, tokens in the prompt", "compute_by_tokens/num_tokens"),
                ("look up, hold and release a prompt; a token", "hit_by_tokens/num_tokens"),
            )
        ],
    ),
    "sizes_of_batches": (
        ["operation, of", "10²", "10³", "10⁴", "10⁵"],
        [
            [label, *(cache(f"{name}_by_sequences/num_sequences:{10**power}", "ns") for power in (2, 3, 4, 5))]
            for label, name in (("append and commit a token; sequences", "append"), ("fork and release; sequences", "fork"))
        ],
    ),
    "steps": (
        ["operation", "`single_thread`", "`lock_free`"],
        [
            [f"retire a step, {blocks:,} blocks in the pool"]
            + [cache(f"retire_a_step<{policies}>/{blocks}", "ns") for policies in ("single_thread, lru", "lock_free, clock_sweep")]
            for blocks in (4096, 32768, 1048576, 4194304)
        ],
    ),
    "gain": (
        ["`gain_of_releasing`", "a block"],
        [["one sequence", cache("gain_of_releasing/1", "ns")], ["eight sequences", cache("gain_of_releasing/8", "ns")]],
    ),
    "kinds": (
        ["time against the plain cache's", "pool of a tenth of the blocks", "pool for all"],
        [
            [label, *(cache(f"requests_by_kind/{percent}", f"{kind}_ratio") for percent in (10, 110))]
            for label, kind in (
                ("groups", "groups"),
                ("an unused host tier", "idle_tier"),
                ("a host tier that gets what is evicted", "writing_tier"),
                ("groups, with such a tier", "groups_writing_tier"),
            )
        ],
    ),
    "costs_of_kinds": (
        ["", "plain cache", "groups", "host tier of as many records"],
        [
            ["append inside a block, and times that", *(cache("append_by_kind", figure) for figure in ("ns", "groups_ratio", "tier_ratio"))],
            ["metadata, bytes a block", *(cache("metadata_by_kind", figure) for figure in ("bytes", "groups_bytes", "tier_bytes"))],
        ],
    ),
    "idle_tier": (
        ["operation", "time with a tier over that without", "of the fastest", "fastest with a tier"],
        [
            ["create a sequence of 256 cached tokens", *tier("create_cached/256")],
            ["create a sequence of 8,192 cached tokens", *tier("create_cached/8192")],
            ["create a sequence of 256 new tokens", *tier("create_new/256")],
            ["create a sequence of 8,192 new tokens", *tier("create_new/8192")],
            ["commit 256 new tokens", *tier("commit_new/256")],
            ["commit 8,192 new tokens", *tier("commit_new/8192")],
            ["append 4,096 tokens, a block taken every 16", *tier("append_tokens")],
        ],
    ),
    "changes_of_size": (
        ["groups of", "change", *(f"`{locking}`" for locking in LOCKINGS)],
        [
            [model, label]
            + [cache(f"change_size_of_groups<{locking}>/model:{i}/cached:{cached}", figure, *["moves"] * cached) for locking in LOCKINGS]
            for i, model in enumerate(("gpt-oss 120B: full, window", "Qwen3-Next 80B: full, state"))
            for label, cached, figure in CHANGES
        ],
    ),
    "runs": (
        ["blocks in the pool", "in runs", "without", "blocks a run", "without", "hit ratio", "without"],
        [
            [f"{num_blocks:,}", *with_and_without_runs(num_blocks, "in_runs", "blocks_per_run", "hit_ratio")]
            for num_blocks in (9139, 18279, 50000)
        ],
    ),
    "late_runs": (
        ["blocks in the pool", "in runs", "without", "at most, in whole octets"],
        [
            [f"{num_blocks:,}", *with_and_without_runs(num_blocks, "late_in_runs"), runs("contiguous_runs", num_blocks, "late_at_most")]
            for num_blocks in (9139, 18279, 50000)
        ],
    ),
    "runs_of_agents": (
        ["blocks in the pool", "in runs", "without", "hit ratio", "without"],
        [
            [f"{num_blocks:,}", *with_and_without_runs(num_blocks, "in_runs", benchmark="replay_agents")]
            + list(map(hit_ratios, with_and_without_runs(num_blocks, "hit_ratio", benchmark="replay_agents")))
            for num_blocks in (1500, 2500)
        ],
    ),
    "tier_hits": (
        ["trace", "blocks of the device, and in host memory", "hit ratio, of these on the device", "hit ratio of a device as large as host memory"],
        [
            [label, f"{num_blocks:,} and {10 * num_blocks:,}", *hits_with_tier(trace, num_blocks)]
            for label, trace, num_blocks in (("conversations (Mooncake)", "conversations", 1000), ("coding agents", "agents", 2000))
        ],
    ),
    "plans": (
        ["1,024 sequences", "plan", "one token later"],
        [
            [label, *([("attention", f"plan_{what}/{batch}", "ns")] for what in ("from_scratch", "one_token_later"))]
            for label, batch in (
                ("without prefixes", "flat"),
                ("that may share prefixes, none shared", "nothing_to_share"),
                ("that all share 1,024 blocks", "sharing_1024_blocks"),
            )
        ],
    ),
    "decode": (
        ["cores", "layout", "element", "group size 1: GB/s, share of the read rate", "4", "8"],
        [
            [str(cores), layout.upper(), element]
            + [attention(cores, f"decode<{element}, {layout}_layer_major>/group_size:{size}", "GB/s", "share_of_read") for size in GROUP_SIZES]
            for cores, layout in ((1, "hnd"), (1, "nhd"), (2, "hnd"))
            for element in ELEMENTS
        ],
    ),
    "shared_prefixes": (
        ["element", "sequences, shared tokens", "group size 1: flat, shared, flat / shared", "4", "8"],
        [
            [element, f"{rows} × {shared:,}"]
            + [
                attention(2, f"decode_shared<{element}>/group_size:{size}/sequences:{rows}/shared:{shared}/own:512", *SHARED)
                for size in GROUP_SIZES
            ]
            for rows, shared in ((16, 16384), (2, 16384), (16, 256), (2, 256))
            for element in ELEMENTS
        ],
    ),
    "lists": (
        ["of the blocks", "5 %", "10 %", "25 %", "100 %"],
        [
            [f"a list for each {label}, group size {size}"]
            + [
                attention(1, f"decode_listed<bfloat16, listed_blocks::{kind}>/group_size:{size}/percent:{percent}", "share_of_time")
                for percent in (5, 10, 25, 100)
            ]
            for label, kind in (("row", "of_rows"), ("KV head", "of_heads"))
            for size in (1, 4)
        ],
    ),
    "threads": (
        ["items a second", "threads", "`single_thread`", "`rw_lock`", "`basic_rw_lock<std::shared_mutex>`", "`sharded_mutex`", "`lock_free`"],
        [
            [label, *row]
            for label, name in (
                ("append a token", "append"),
                ("reference and release, own blocks", "reference_own_blocks"),
                ("the same, shared blocks", "reference_shared_blocks"),
                ("look up, own text; blocks", "look_up_own_text"),
                ("look up, one text; blocks", "look_up_shared_text"),
                ("requests shaped like the traces", "serve"),
            )
            for row in by_threads(name, ("rw_lock", "rw_lock_std_shared_mutex", *OF_THREADS[1:]))
        ],
    ),
    "free_lists": (
        ["ids at a time", "threads", *(f"`{locking}`" for locking in ("single_thread", *OF_THREADS))]
        + ["Boost stack", "Boost queue", "mutex, vector", "`lock_free` / Boost stack"],
        [
            [str(depth), *row, shared(f"pop_and_push<lock_free, {depth}>", row[0], "vs_boost_stack")]
            for depth in (1, 32, 500)
            for row in by_threads("pop_and_push", (*OF_THREADS, "boost_stack", "boost_queue", "mutex_and_vector"), f", {depth}")
        ],
    ),
    "latencies": (
        ["blocks", "threads", *(f"`{locking}`: p50, p99, p99.9" for locking in OF_THREADS), "the computation, and its longest"],
        [
            [f"{blocks:,}", str(threads)]
            + [
                [("concurrency", f"answer_when_full<{locking}>/blocks:{blocks}/threads:{threads}", figure) for figure in LATENCIES]
                for locking in OF_THREADS
            ]
            + [[("concurrency", f"compute/threads:{threads}", figure) for figure in (*LATENCIES, "max_us")]]
            for blocks in (10_000, 1_000_000)
            for threads in (1, 2, 16)
        ],
    ),
    "writers": (
        ["mutex", "p50, p99, p99.9, longest wait of a writer", "writes of 4,000"],
        [
            [label, *([("concurrency", f"wait_as_writer<{mutex}>", figure) for figure in figures] for figures in ((*LATENCIES, "max_us"), ("calls",)))]
            for label, mutex in (("`fair_shared_mutex`", "own_shared_mutex"), ("glibc's `std::shared_mutex`", "std_shared_mutex"))
        ],
    ),
}


# By name: the labels of the axes, and by label of a line the figure of each x.
PLOTS = {
    "threads": (
        ("threads", "items a second"),
        {
            f"{label}, {policy}": {threads: shared(f"{name}<{policy}>", threads)[0] for threads in (1, 2, 4, 8, 16)}
            for label, name in (("append", "append"), ("look up", "look_up_own_text"), ("request", "serve"))
            for policy in OF_THREADS
        },
    ),
    "sizes": (
        ("blocks in the pool, or tokens in the prompt", "ns of a block or a token"),
        {
            label: {10**power: ("cache", f"{name}:{10**power}", "ns") for power in (4, 5, 6, 7)}
            for label, name in (
                ("replace a block", "replace_by_blocks/num_blocks"),
                ("look up, hold and release a block", "hit_by_blocks/num_blocks"),
                ("look up a block", "find_by_blocks/num_blocks"),
                ("compute a prompt, a token", "compute_by_tokens/num_tokens"),
                ("look up and hold a prompt, a token", "hit_by_tokens/num_tokens"),
            )
        },
    ),
}

# Pages with a module of their own.
TABLES |= eviction_tables.TABLES | engine_tables.TABLES
PLOTS |= eviction_tables.PLOTS | engine_tables.PLOTS
SCALES = device_tables.SCALES | eviction_tables.SCALES | engine_tables.SCALES  # of plots, where axes are not logarithmic with a mark at each point


def figures(tables=TABLES, plots=PLOTS):
    """Of all cells and points."""
    of_cells = [figure for _, rows in tables.values() for row in rows for cell in row if not isinstance(cell, str) for figure in cell]
    return of_cells + [figure for _, lines in plots.values() for points in lines.values() for figure in points.values()]


def by_plain_names(results):
    return {area: {bench_results.plain(name): found for name, found in all_found.items()} for area, all_found in results.items()}


def draw(results, folder):
    """The plots whose figures are all there; the files that were written. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pagedkv"  # equal figures, equal files
    from matplotlib import pyplot, ticker

    named = by_plain_names(results)
    written = []
    for name, ((across, up), lines) in (PLOTS | device_tables.PLOTS).items():
        try:
            found = {label: [(x, named[area][of][figure]) for x, (area, of, figure) in points.items()] for label, points in lines.items()}
        except KeyError:
            continue
        canvas, plot = pyplot.subplots(figsize=(8, 5))
        for i, (label, points) in enumerate(found.items()):
            plot.plot(*zip(*points), marker="os"[i // 10], linestyle=("-", "--")[i // 10], markersize=3, label=label)
        scales = {"xscale": "log", "yscale": "log", "xticks": sorted({x for points in found.values() for x, _ in points})}
        for scale, value in (scales | SCALES.get(name, {})).items():
            plot.set(**{scale: value})
        plot.set(xlabel=across, ylabel=up)
        plot.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:,.0f}" if x == int(x) else f"{x:g}"))
        plot.minorticks_off()
        plot.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
        canvas.savefig(folder / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(canvas)
        written.append(folder / f"{name}.svg")
    return written + device_tables.draw_peer(named, folder / "flashinfer.svg")


def text_of(cell, named):
    if isinstance(cell, str):
        return cell
    if lacking := [each for each in cell if each[2] not in named.get(each[0], {}).get(each[1], {})]:
        raise LookupError(lacking[0])
    values = [named[area][name][figure] for area, name, figure in cell]
    if isinstance(cell, bench_results.Shown):
        return cell.show(*values)
    return ", ".join(filter(None, (bench_results.readable(figure, value) for (_, _, figure), value in zip(cell, values))))


def tables(results):
    """In Markdown, by name, those whose figures are all there; and a figure that lacks of each of the others, but for those of
    programs that did not run."""
    named = by_plain_names(results)
    made, lacking = {}, {}
    of_reports = report_rows.tables(device_tables.columns(results) | peer_tables.COLUMNS, results)
    for table, (heading, rows) in (TABLES | device_tables.TABLES | peer_tables.TABLES | of_reports).items():
        areas = dict.fromkeys(figure[0] for row in rows for cell in row if not isinstance(cell, str) for figure in cell)
        if not areas.keys() & results.keys():
            continue
        try:
            cells = [heading, ["---"] * len(heading)]
            for row in rows:
                cells.append([text_of(cell, named) for cell in row])
            caption = report_rows.caption(results, areas)
            made[table] = (f"{caption}:\n\n" if caption else "") + "\n".join(f"| {' | '.join(row)} |" for row in cells)
        except LookupError as absent:
            lacking[table] = absent.args[0]
    return made, lacking


MARKED = re.compile(r"(<!-- table (\w+) -->\n)(.*?)(\n?<!-- end -->)", re.DOTALL)


def pages(root):
    names = ("performance.md", "performance_host.md", "performance_devices.md", "concurrency.md", "eviction.md", "llama.md", "tiers.md")
    return [root / "docs" / name for name in names]


def insert(page, made):
    """The page with these tables in place of those of their names."""
    return MARKED.sub(lambda found: f"{found[1]}{made[found[2]]}\n<!-- end -->" if found[2] in made else found[0], page)
