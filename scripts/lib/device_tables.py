"""Tables and plots of docs/performance_devices.md, and those of devices in docs/performance.md, from what scripts/device-test left in
results.json.

Figures are those of scripts/lib/bench_results.py: by area and benchmark. Areas are named as their tables. A benchmark is a row. A
figure may be text."""

import report_rows

NOT_MEASURED = "not measured"
SIZES = (64, 256, 1024)
ELEMENTS = {"bfloat16": "bfloat16", "int8": "int8", "float8_e4m3": "fp8"}
BYTES = ("int8", "float8_e4m3")
LONG_BATCH = "64 x 4096 · 32/8 · 128 · 16"


def moves(operation, *figures):
    return [("device_moves", operation, figure) for figure in figures]


def decode(row, element):
    return [("device_decode", row, f"{element}_{figure}") for figure in ("us", "share")]


def beside_flashinfer(row, element):
    return [[("device_flashinfer", row, f"{element}_{figure}")] for figure in ("us", "peer_us", "times")]


def link(section):
    return f"[more](performance_devices.md#{section})"


# By name: the heading, and the rows, as in bench_tables.
TABLES = {
    "device_expected": (
        ["attention on a device", "figure", "more"],
        [
            ["decode 64 x 4096, 32/8 heads, bfloat16; time, share of the read ceiling", decode(LONG_BATCH, "bfloat16"),
             link("attention-that-decodes")],
            ["the same over fp8", decode(LONG_BATCH, "float8_e4m3"), ""],
            ["decode 1 x 131072, 32/8 heads, bfloat16", decode("1 x 131072 · 32/8 · 128 · 16", "bfloat16"), ""],
            ["prompts 8 x 2048 and 8 x 512 over 8192, 32/8 heads, TFLOP/s",
             [("device_prompts", f"{batch} · 32/8", "bfloat16_tera") for batch in ("8 x 2048", "8 x 512 over 8192")], link("prompts")],
            ["latent vectors 64 x 4096, 128 heads, TFLOP/s", [("device_latent", "64 x 4096 · 128/1", "bfloat16_tera")], link("latent-vectors")],
            ["10 % of the blocks of 64 x 4096 by lists, bfloat16; of the time of all",
             [("device_lists", "64 x 4096 · bfloat16", "rows_10_share")], link("lists-of-blocks")],
            ["64 x (16384 shared + 512), 32/8 heads, bfloat16; times as fast as unshared",
             [("device_prefixes", "64 x (16384 + 512)", "32/8 bfloat16")], link("shared-prefixes")],
        ],
    ),
    "device_expected_flashinfer": (
        ["attention beside FlashInfer", "pagedkv", "FlashInfer", "times as long", "more"],
        [
            ["decode 64 x 4096, 32/8 heads, bfloat16", *beside_flashinfer(LONG_BATCH, "bfloat16"), link("beside-flashinfer")],
            ["the same over fp8", *beside_flashinfer(LONG_BATCH, "float8_e4m3"), ""],
            ["decode 16 x 32768, 32/8 heads, bfloat16", *beside_flashinfer("16 x 32768 · 32/8 · 128 · 16", "bfloat16"), ""],
            ["decode 48 lengths from 500 to 24,000, 16/1 heads of 256 numbers, bfloat16",
             *beside_flashinfer("48 ramp · 16/1 · 256 · 16", "bfloat16"), ""],
        ],
    ),
    "device_expected_moves": (
        ["moves on a device, and a whole step", "figure", "more"],
        [
            ["append and gather, bfloat16, 1,024 MiB, of a device copy",
             moves("append bfloat16 to bfloat16", "1024_ratio") + moves("gather bfloat16 to bfloat16", "1024_ratio"), link("moves")],
            ["copy blocks, 1,024 MiB, of a device copy", moves("copy blocks", "1024_ratio"), ""],
            ["swap out and in, scattered, 16 KiB a block, 1,024 MiB, of a pinned copy",
             moves("swap out, 16 KiB, scattered (of pinned copy)", "1024_ratio")
             + moves("swap in, 16 KiB, scattered (of pinned copy)", "1024_ratio"), ""],
            ["1 GiB more and less", [("device_changes", change, "us") for change in ("grow", "shrink")], link("changes-of-size")],
            ["a decode step of 8 billion weights, 1, 8 and 64 sequences",
             [("device_step", count, "ms") for count in ("1", "8", "64")], link("the-engine-of-examplesllama")],
        ],
    ),
}  # fmt: skip

# As report_rows takes them.
COLUMNS = {
    "device_moves": (["operation"], {f"{size:,} MiB: GB/s, ratio": [f"{size}_GB/s", f"{size}_ratio"] for size in SIZES}),
    "device_peers": (
        ["bytes of a block"],
        {
            f"{layout}: runtime's copy, GB/s; move, GB/s; share": [f"{layout}_{name}" for name in ("copied_GB/s", "GB/s", "share")]
            for layout in ("layer major", "block major")
        },
    ),
    "device_changes": (["change by 1 GiB"], {"whole time": ["us"], "of it the cache's own": ["own_us"]}),
    "device_decode": (
        ["batch", "query/KV heads", "numbers", "block"],
        {f"{label}: time, share": [f"{element}_us", f"{element}_share"] for element, label in ELEMENTS.items()},
    ),
    "device_flashinfer": (
        ["batch", "query/KV heads", "numbers", "block"],
        {
            f"{ELEMENTS[element]}: pagedkv, FlashInfer, times as long": [f"{element}_{figure}" for figure in ("us", "peer_us", "times")]
            for element in ("bfloat16", "float8_e4m3")
        },
    ),
    "device_graphs": (
        ["batch", "query/KV heads", "numbers", "block"],
        {"pagedkv": ["us"], "FlashInfer": ["peer_us"], "times as long": ["times"]},
    ),
    "device_prompts": (
        ["batch", "query/KV heads"],
        {f"{label}, TFLOP/s": [f"{element}_tera"] for element, label in ELEMENTS.items()}
        | {f"{ELEMENTS[element]}, expanded once": [f"{element}_expanded_tera"] for element in BYTES},
    ),
    "device_latent": (
        ["batch", "query/KV heads"],
        {"bfloat16, TFLOP/s": ["bfloat16_tera"], "`float8_latent`, TFLOP/s": ["float8_latent_tera"]},
    ),
    "device_flashinfer_products": (
        ["batch", "query/KV heads"],
        {"TFLOP/s": ["tera"], "FlashInfer's": ["peer_tera"], "times as long": ["times"]},
    ),
    "device_lists": (
        ["batch", "element"],
        {"all blocks": ["rows_all_us"], "5 % for each row, each KV head": ["rows_5_us", "KV heads_5_us"]}
        | {f"{percent} %, of that time": [f"rows_{percent}_share", f"KV heads_{percent}_share"] for percent in (5, 10, 25, 100)},
    ),
    "device_step": (
        ["sequences"],
        {
            "step": ["ms"],
            "GB read": ["GB"],
            "share of the read rate": ["share"],
            "calls of the cache": ["in_cache_us"],
            "tokens a second": ["tokens_per_second"],
        },
    ),
    "device_transformers": (["sequences"], {"step": ["ms"], "`transformers`": ["peer_ms"], "times as long": ["times"]}),
}
# The same, with a column for each figure of the first row, and another for it in a graph.
PREFIXES = "device_prefixes", ["batch x (shared + own)"], ", in a graph"

# As in bench_tables.
PLOTS = {
    "bandwidth": (
        ("MiB", "GB/s"),
        {
            label: {size: moves(label, f"{size}_GB/s")[0] for size in SIZES}
            for label in (
                "device copy",
                "append bfloat16 to bfloat16",
                "gather bfloat16 to bfloat16",
                "rope append bfloat16 to bfloat16",
                "append float16 to int8",
                "gather int8 to float16",
                "copy blocks",
                "move blocks, independent",
                "convert float16 to int8",
            )
        },
    ),
}
SCALES = {"bandwidth": {"yscale": "linear"}}


def columns(results):
    """Of this run, by name."""
    area, left, graph = PREFIXES
    if area not in results:
        return COLUMNS
    names = [name for name in next(iter(results[area].values())) if not name.endswith(graph)]
    return COLUMNS | {area: (left, {name: [name, name + graph] for name in names})}


def beside_peer(results):
    """By a panel's axis: rows' labels, ours and FlashInfer's figures; only rows that FlashInfer takes."""
    panels = {
        "decoding in bfloat16, share of the read ceiling": ("device_flashinfer", "bfloat16_share", "bfloat16_peer_share"),
        "TFLOP/s": ("device_flashinfer_products", "tera", "peer_tera"),
    }
    return {
        axis: [
            (benchmark, figures[ours], figures[theirs])
            for benchmark, figures in results.get(area, {}).items()
            if isinstance(figures.get(theirs), float)
        ]
        for axis, (area, ours, theirs) in panels.items()
    }


def draw_peer(results, path):
    """Ours beside FlashInfer, by shape. Needs matplotlib, set up by bench_tables."""
    panels = {axis: rows for axis, rows in beside_peer(results).items() if rows}
    if not panels:
        return []
    from matplotlib import pyplot

    heights = [len(rows) for rows in panels.values()]
    canvas, plots = pyplot.subplots(len(panels), figsize=(8, 0.28 * sum(heights)), height_ratios=heights, layout="constrained", squeeze=False)
    for plot, (axis, rows) in zip(plots[:, 0], panels.items()):
        for offset, at, label in ((-0.2, 1, "pagedkv"), (0.2, 2, "FlashInfer")):
            plot.barh([place + offset for place in range(len(rows))], [row[at] for row in rows], 0.4, label=label)
        plot.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=7)
        plot.set(xlabel=axis, ylim=(len(rows) - 0.5, -0.5))
    plots[0, 0].legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    canvas.savefig(path, metadata={"Date": None})
    pyplot.close(canvas)
    return [path]


def name_of(each, *more):
    return report_rows.name_of(each["shape"], f"{each['query_heads']}/{each['kv_heads']}", *more)


def name_of_decoding(each):
    return name_of(each, each["head_dim"], each["block_size"])


def decoding(report):
    rows = {}
    for each in report["results"]:
        if each["library"] == "pagedkv":
            element, figures = each["element"], rows.setdefault(name_of_decoding(each), {})
            figures |= {f"{element}_us": each["microseconds"], f"{element}_share": each["share_of_ceiling"]}
    return rows


def products(report, prefix, optional=()):
    """Attention whose shapes have this prefix, in operations a second; some are not measured over `optional` elements."""
    rows = {}
    for each in report["products"]:
        if each["library"] == "pagedkv" and each["shape"].startswith(prefix):
            figures = rows.setdefault(name_of(each).removeprefix(prefix), {f"{element}_tera": "" for element in optional})
            how = "_expanded" if each.get("expanded") else ""
            figures[f"{each['element']}{how}_tera"] = each["operations_per_second"] / 1e12
    return rows


def pairs(records, elements):
    """Ours over these elements, each with FlashInfer's record, or None where that lacks; without rows of which nothing was measured."""

    def key(each):
        return each["shape"], each["query_heads"], each["kv_heads"], each.get("head_dim"), each.get("block_size")

    theirs = {(key(each), each["element"]): each for each in records if each["library"] == "flashinfer"}
    absent = {key(each) for each in theirs.values()} - {key(each) for each in theirs.values() if each["variant"] != NOT_MEASURED}
    ours = [each for each in records if each["library"] == "pagedkv" and each["element"] in elements and key(each) not in absent]
    return [(each, theirs.get((key(each), each["element"]))) for each in ours]


def beside(ours, theirs, text, **figures):
    """The peer's figures by name, each a function of how much longer it takes than ours; without a time, this text for the first one."""
    if theirs is None:
        return dict.fromkeys(figures, "") | {next(iter(figures)): text}
    return {name: figure(theirs / ours) for name, figure in figures.items()}


def decoding_beside(report):
    rows = {}
    for ours, theirs in pairs(report["results"], ("bfloat16", "float8_e4m3")):
        time, share = ours["microseconds"], ours["share_of_ceiling"]
        figures = {"us": time, "share": share}
        if theirs:
            their = {"peer_us": lambda times: time * times, "times": float, "peer_share": lambda times: share / times}
            figures |= beside(time, theirs["microseconds"], theirs["variant"], **their)
        rows.setdefault(name_of_decoding(ours), {}).update({f"{ours['element']}_{name}": figure for name, figure in figures.items()})
    return rows


def graphs_beside(report):
    rows = {}
    for ours, theirs in pairs(report["results"], ("bfloat16",)):
        time = ours["graph_microseconds"]
        rows[name_of_decoding(ours)] = {"us": time}
        if theirs:
            lacks = theirs["variant"] if theirs["microseconds"] is None else "no graph"
            their = {"peer_us": lambda times: time * times, "times": float}
            rows[name_of_decoding(ours)] |= beside(time, theirs["graph_microseconds"], lacks, **their)
    return rows


def products_beside(report):
    rows = {}
    for ours, theirs in pairs(report["products"], ("bfloat16",)):
        rate = ours["operations_per_second"] / 1e12
        rows[name_of(ours)] = {"tera": rate}
        if theirs:
            their = {"peer_tera": lambda times: rate / times, "times": float}
            rows[name_of(ours)] |= beside(ours["microseconds"], theirs["microseconds"], theirs["variant"], **their)
    return rows


def prefixes(report):
    rows = {}
    for each in report["prefixes"]:
        name = f"{each['query_heads']}/{each['kv_heads']} {each['element']}"
        if each["plan"] == "cascade":
            shares = each["prefixes"] > 0
            rows.setdefault(each["shape"], {})[name] = each["speed_of_flat"] if shares else "flat"
        elif each["plan"] != "flat":
            rows[each["shape"]][f"{name}, in a graph"] = each["speed_of_flat"]
    return rows


def lists(report):
    rows = {}
    for each in report["lists"]:
        percent = each["percent"]
        figures = {"all_us": each["all_microseconds"], f"{percent}_us": each["microseconds"], f"{percent}_share": each["share_of_all"]}
        row = rows.setdefault(report_rows.name_of(each["shape"], each["element"]), {})
        row |= {f"{each['lists']}_{name}": figure for name, figure in figures.items()}
    return rows


def by_operation(records):
    rows = {}
    for each in records:
        size = round(each["mebibytes"])
        rows.setdefault(each["operation"], {}).update({f"{size}_GB/s": each["bytes_per_second"] / 1e9, f"{size}_ratio": each["ratio"]})
    return rows


def by_change(records):
    return {each["change"]: {"us": each["microseconds"], "own_us": each["own_microseconds"]} for each in records}


def by_block(records):
    rows = {}
    for each in records:
        copied, moved = each["copied_bytes_per_second"], each["bytes_per_second"]
        figures = {"copied_GB/s": copied / 1e9, "GB/s": moved / 1e9, "share": moved / copied}
        rows.setdefault(f"{each['block_bytes']:,}", {}).update({f"{each['layout']}_{name}": value for name, value in figures.items()})
    return rows


def steps(report):
    return {
        str(each["sequences"]): {
            "ms": each["seconds"] * 1e3,
            "GB": each["bytes"] / 1e9,
            "share": each["bytes"] / report["read_rate"] / each["seconds"],
            "in_cache_us": each["seconds_in_cache"] * 1e6,
            "tokens_per_second": each["sequences"] / each["seconds"],
        }
        for each in report["rows"]
    }


def steps_beside(report):
    theirs = {each["sequences"]: each["seconds"] for each in report["transformers"]}
    rows = {}
    for each in report["rows"]:
        count, ours = each["sequences"], each["seconds"] * 1e3
        rows[str(count)] = {"ms": ours}
        if count in theirs:
            rows[str(count)] |= beside(each["seconds"], theirs[count], NOT_MEASURED, peer_ms=lambda times: ours * times, times=float)
    return rows


def results(report):
    """Figures by area and benchmark; of each area, `machines` says where it ran, and beside what."""
    machine = report["machine"]
    where = f"{machine['device']}, driver {machine['driver']}, {machine['compiler']}, {machine['date']}"
    found = {"machines": {}}

    def add(area, rows, *more):
        if not rows:
            return
        found.setdefault(area, {}).update(rows)
        found["machines"].setdefault(area, report_rows.machine(where, more))

    for part in (report[name] for name in ("attention", "attention_shapes") if name in report):
        ceiling = f"read ceiling {part['read_ceiling'] / 1e9:,.0f} GB/s"
        add("device_decode", decoding(part), ceiling)
        if "flashinfer" in part:
            add("device_flashinfer", decoding_beside(part), ceiling, f"FlashInfer {part['flashinfer']}")
            add("device_graphs", graphs_beside(part), f"FlashInfer {part['flashinfer']}")
    if part := report.get("attention"):
        add("device_prompts", products(part, "prefill ", [element + how for element in BYTES for how in ("", "_expanded")]))
        add("device_latent", products(part, "MLA "))
        add("device_prefixes", prefixes(part))
        add("device_lists", lists(part))
        if "flashinfer" in part:
            add("device_flashinfer_products", products_beside(part), f"FlashInfer {part['flashinfer']}")
    if part := report.get("device_step"):
        add("device_step", steps(part), f"read rate {part['read_rate'] / 1e9:,.0f} GB/s")
        if "transformers" in part:
            add("device_transformers", steps_beside(part), f"transformers {part['transformers_version']}")
    for area, name, rows_of in (("moves", "bandwidth", by_operation), ("changes", "resize", by_change), ("peers", "peer", by_block)):
        if name in report:
            add(f"device_{area}", rows_of(report[name]))
    return found
