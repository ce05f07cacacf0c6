"""The tables and the plot of docs/eviction.md, from figures of bench/eviction; in the form of bench_tables.py."""

import statistics

from bench_results import Shown

POLICIES = ("lru", "fifo", "basic_clock_sweep<1>", "clock_sweep", "sieve", "slru", "arc", "lfu", "s3_fifo", "tiny_lfu", "priority", "hit_density")
SAMPLING = ("tiny_lfu", "hit_density")  # by hashes, so that seeds differ
LIMITS = ("oracle", "bound")
LABELS = {policy: f"`{policy}`" for policy in POLICIES} | {"priority": "`priority`, no priorities given"}
GENERATED = ("shared_system_prompt", "agents", "uniform", "scans", "regime_change", "conversations")
SEEDS = tuple(range(9001, 9007))  # of generated traffic

SIZES = {
    "conversations": (1000, 5000, 9139, 18279, 31774, 50000),
    "agents": (400, 500, 600, 700, 800, 1000, 1200, 1500, 2000, 2500, 3000, 4000),
    "late_conversations": (1000, 5000, 9139, 18279),
    "late_agents": (400, 600, 800, 1500, 2500),
    "generated": (300, 1000, 3000, 8000),
}
SIZES_OF_PLOT = (1000, 2000, 3000, 5000, 9139, 13000, 18279, 24000, 31774, 40000, 50000, 70000, 90000)


def share(value, digits=4):
    return f"{value:.{digits}f}".lstrip("0")


def figure(policy, traffic, size, name="hit_ratio"):
    return ("eviction", f"hit_ratio<{policy}, {traffic}>/{size}", name)


def ratio(policy, traffic, size):
    """The mean of several seeds with its deviation, or the one ratio that there is."""
    if policy in SAMPLING:
        figures = [figure(policy, traffic, size), figure(policy, traffic, size, "deviation")]
        return Shown(figures, lambda mean, deviation: f"{share(mean)} ± {share(deviation)}")
    return Shown([figure(policy, traffic, size)], share)


def mean(policy, traffic, size):
    return Shown([figure(policy, traffic, size)], share)


def gain(kind, size, seeds=SEEDS[:4]):
    """From `lru` to `hit_density`, in the mean of these seeds."""
    figures = [figure(policy, f"generated_{kind}", size, f"of_seed_{seed}") for policy in ("lru", "hit_density") for seed in seeds]
    return Shown(figures, lambda *of: f"{share(statistics.mean(of[: len(seeds)]), 3)} → {share(statistics.mean(of[len(seeds) :]), 3)}")


def shortfall(traffic, sizes, rivals, seeds, of_means):
    """The most by which `hit_density` is below the best of some policies, and where: in the means of seeds, or with one of them."""
    of_seeds = [f"of_seed_{seed}" for seed in seeds]
    places = [(name, size) for name in traffic for size in sizes]
    rows = [
        [[figure(policy, name, size, of) for of in (of_seeds if name.startswith("generated") or policy in SAMPLING else ["hit_ratio"] * len(seeds))]
         for policy in ("hit_density", *rivals)]
        for name, size in places
    ]  # fmt: skip

    def show(*values):
        left = iter(values)
        worst = (0.0, "")
        for (name, size), policies in zip(places, rows):
            own, *others = ([next(left) for _ in policy] for policy in policies)
            if of_means:
                own, *others = ([statistics.mean(policy)] for policy in (own, *others))
            kind = name.removeprefix("generated_")
            place = f"`{kind}` at {size:,}" if kind != name else f"at {size:,}"
            worst = max(worst, *((max(best) - mine, place) for mine, best in zip(own, zip(*others))), key=lambda each: each[0])
        return f"{share(worst[0])} ({worst[1]})" if worst[0] >= 0.00005 else "never"

    return Shown([each for row in rows for policy in row for each in policy], show)


def shortfalls(label, traffic, sizes, seeds_of_means, seeds):
    others = [policy for policy in POLICIES if policy != "hit_density"]
    return [label] + [shortfall(traffic, sizes, rivals, *of) for rivals in (["lru"], others) for of in ((seeds_of_means, True), (seeds, False))]


def cost(policy, name):
    figures = [("eviction", f"cost_of<{policy}>/blocks:{size}", name) for size in (10_000, 100_000, 1_000_000)]
    return Shown(figures, lambda *times: " / ".join(f"{time:.0f}" for time in times))


TABLES = {
    "hit_ratios": (
        ["policy", *(f"{size:,}" for size in SIZES["conversations"]), "bytes per block"],
        [
            [LABELS[policy], *(ratio(policy, "conversations", size) for size in SIZES["conversations"])]
            + [Shown([figure(policy, "conversations", 1000, "bytes_per_block")], lambda value: f"{value:.0f}")]
            for policy in POLICIES
        ]
        + [[limit, *(ratio(limit, "conversations", size) for size in SIZES["conversations"]), ""] for limit in LIMITS],
    ),
    "late_hit_ratios": (
        ["policy"]
        + [f"{traffic}, {size:,}" if size == SIZES[f"late_{traffic}"][0] else f"{size:,}"
           for traffic in ("conversations", "agents") for size in SIZES[f"late_{traffic}"]],
        [
            [LABELS.get(policy, policy), *(ratio(policy, traffic, size) for traffic in ("late_conversations", "late_agents") for size in SIZES[traffic])]
            for policy in (*POLICIES, *LIMITS)
            if policy not in ("basic_clock_sweep<1>", "priority")
        ],
    ),  # fmt: skip
    "generated_traffic": (
        ["traffic", *(f"{size:,} blocks" if size == SIZES["generated"][0] else f"{size:,}" for size in SIZES["generated"])],
        [[f"`{kind}`", *(gain(kind, size) for size in SIZES["generated"])] for kind in GENERATED],
    ),
    "shortfalls": (
        ["at most below", "`lru`, means", "`lru`, one seed", "the best of the others, means", "the best of the others, one seed"],
        [
            shortfalls("generated traffic, four sizes", [f"generated_{kind}" for kind in GENERATED], SIZES["generated"], SEEDS[:4], SEEDS),
            shortfalls("conversations, six sizes", ["conversations"], SIZES["conversations"], range(1, 9), range(1, 9)),
            shortfalls("agents, twelve sizes", ["agents"], SIZES["agents"], range(1, 9), range(1, 9)),
            shortfalls("second half of the conversations, four sizes", ["late_conversations"], SIZES["late_conversations"], range(1, 9), range(1, 9)),
            shortfalls("second half of the agents, seven sizes", ["late_agents"], (400, 600, 700, 800, 1000, 1500, 2500), range(1, 9), range(1, 9)),
        ],
    ),
    "eviction_costs": (
        ["policy", "hit", "victim", "pinned"],
        [
            [f"`{policy}`", *(cost(policy, name) for name in ("hit_ns", "victim_ns", "victim_among_used_ns"))]
            for policy in POLICIES
            if policy != "basic_clock_sweep<1>"
        ],
    ),
    "known_pauses": (
        ["blocks", "true hints", "oracle", "no hints"],
        [
            [f"{size:,}", *(Shown([("eviction", f"known_pauses/{size}", name)], lambda value: share(value, 3)) for name in ("true_hints", "oracle", "no_hints"))]
            for size in (500, 1000, 2000)
        ],
    ),
}

PLOTS = {
    "eviction": (
        ("blocks in the pool", "hit ratio of the conversations"),
        {
            policy: {size: figure(policy, "conversations", size) for size in SIZES_OF_PLOT}
            for policy in (*reversed(LIMITS), *reversed(POLICIES))
            if policy not in ("basic_clock_sweep<1>", "priority")  # nearly clock_sweep, and lru
        },
    ),
}
SCALES = {"eviction": {"yscale": "linear", "ylim": (0, None), "xticks": (1000, 2000, 5000, 10000, 20000, 50000, 90000)}}
