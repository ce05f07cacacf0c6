"""Results of Google Benchmark's programs, and of scripts/device-test: read and merged, their ratios to a stored run, tables and plots."""

import collections
import json
import pathlib
import re

import device_tables

NOTES = re.compile(r"^(real_time|process_time|manual_time|min_time:|min_warmup_time:|iterations:|repeats:)")
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
# Numbers that Google Benchmark gives to every entry; all others are counters.
COMMON = {"family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads", "iterations", "real_time", "cpu_time"}
# Errors of a benchmark that lacks what not every machine has.
ABSENT = re.compile(r"\.jsonl: cannot be read$|^no store answers|io_uring, which this kernel or sandbox refuses")


class Shown(list):
    """Figures of a table's cell, and the function that makes its text of their values."""

    def __init__(self, figures, show):
        super().__init__(figures)
        self.show = show


def plain(name):
    """Without how the benchmark ran."""
    return "/".join(part for part in name.split("/") if not NOTES.match(part))


def unit_of(figure):
    """`us` of find_us and us_per_request, `ms` of first_token_ms.p50; None of what is no time."""
    found = re.search(r"(?:^|[_.])(ns|us|ms|s)(?:$|\.|_per_)", figure)
    return found and found[1]


def figures_of(entry):
    """Counters, and the time of an iteration, as `ns`, where it is a figure: not beside a benchmark's own times, and not
    where a single iteration has all repetitions and their preparation."""
    counters = {name: value for name, value in entry.items() if type(value) in (int, float) and name not in COMMON}
    if any(unit_of(name) for name in counters) or (counters and "iterations:1" in entry["name"].split("/")):
        return counters
    return {"ns": entry["real_time"] * NANOSECONDS[entry["time_unit"]], **counters}


def read(paths):
    """Figures by area and benchmark, medians where there are repetitions, and the errors by benchmark; from reports of
    programs, from stored results, and from what scripts/device-test collected."""
    results, errors = collections.defaultdict(dict), {}
    for path in paths:
        report = json.loads(pathlib.Path(path).read_text())
        if "machine" in report:
            report = device_tables.results(report)
        for area, found in report.items() if "benchmarks" not in report else ():
            results[area] |= found
        context = report.get("context", {})
        area = pathlib.PurePath(context.get("executable", "")).name.removesuffix("_bench")
        area += f" on {context['cores']}" if "cores" in context else ""
        for entry in report.get("benchmarks", []):
            name = entry.get("run_name", entry["name"])
            if entry.get("error_occurred"):
                errors[f"{area}: {name}"] = entry["error_message"]
            elif entry.get("aggregate_name", "median") == "median":
                results[area][name] = figures_of(entry | {"name": name})  # the median comes behind the repetitions
    return dict(results), errors


def ratios(new, old):
    """By name and figure, the new one in parts of the old one."""
    return {
        (name, figure): value / old[name][figure]
        for name, found in new.items()
        for figure, value in found.items()
        if old.get(name, {}).get(figure) and not isinstance(value, str) and not isinstance(old[name][figure], str)
    }


def scaled(value, units):
    """In the largest unit of which there is one, or in the last."""
    factor, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{number(value / factor)} {unit}"


def number(value):
    """Three digits, and all of those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:#.3g}".rstrip(".")


def readable(figure, value):
    if isinstance(value, str):
        return value
    if unit := unit_of(figure):
        return scaled(value * NANOSECONDS[unit], [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")])
    if figure == "bytes_per_second":
        return scaled(value, [(1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")])
    if figure == "items_per_second":
        return scaled(value, [(1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1, "/s")])
    return number(value)


def table(results, against):
    """In Markdown; with a stored run, its ratios."""
    found = ratios(results, against)
    lines = ["| benchmark | figure | value |" + (" ratio |" if against else ""), "|---|---|---|" + ("---|" if against else "")]
    for name, figures in results.items():
        for figure, value in figures.items():
            cells = [f"`{name}`", figure, readable(figure, value)]
            if against:
                cells.append(f"{found[name, figure]:.2f}" if (name, figure) in found else "new")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def series(results):
    """Lines of plots: for each figure of benchmarks that ran with several numbers of threads, or several last arguments,
    (x, value). Keys: the axis, the figure (`ns` of all times), the label."""
    lines = collections.defaultdict(list)
    for name, figures in results.items():
        parts = plain(name).split("/")
        places = [i for i, part in enumerate(parts) if re.fullmatch(r"(threads:|\w+:)?\d+", part)]
        if not places:
            continue
        at = next((i for i in places if parts[i].startswith("threads:")), places[-1])
        axis, _, x = parts[at].rpartition(":")
        label = "/".join(parts[:at] + parts[at + 1 :])
        for figure, value in figures.items():
            if isinstance(value, str):
                continue
            if unit := unit_of(figure):
                lines[axis or "argument", "ns", f"{label}, {figure}"].append((int(x), value * NANOSECONDS[unit]))
            else:
                lines[axis or "argument", figure, label].append((int(x), value))
    return {key: sorted(points) for key, points in lines.items() if len({x for x, _ in points}) > 1}


def draw(results, title, path):
    """A plot for each axis and figure; the files that were written. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    written = []
    lines = series(results)
    for axis, figure in sorted({key[:2] for key in lines}):
        canvas, plot = pyplot.subplots(figsize=(9, 5))
        for (_, _, label), points in ((key, points) for key, points in lines.items() if key[:2] == (axis, figure)):
            plot.plot(*zip(*points), marker="o", markersize=3, label=label or figure)
        plot.set(xscale="log", yscale="log", xlabel=axis, ylabel=figure, title=title)
        plot.legend(fontsize=5)
        target = path.with_name(f"{path.name}.{axis}.{figure.replace('/', '_per_')}.svg")
        canvas.savefig(target)
        pyplot.close(canvas)
        written.append(target)
    return written
