"""Results of Google Benchmark's programs: one file of them, ratios to another, tables and plots."""

import collections
import json
import pathlib
import re

NOTES = re.compile(r"^(real_time|process_time|manual_time|min_time:|min_warmup_time:|iterations:|repeats:)")
NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def read_report(path):
    """Medians by name; of benchmarks that ran once, what they measured. Those that were skipped are left out."""
    found = {}
    for entry in json.loads(pathlib.Path(path).read_text()).get("benchmarks", []):
        if entry.get("error_occurred") or entry.get("skipped") or entry.get("aggregate_name", "median") != "median":
            continue
        result = {"nanoseconds": entry["real_time"] * NANOSECONDS[entry["time_unit"]]}
        for rate in ("bytes_per_second", "items_per_second"):
            if rate in entry:
                result[rate] = entry[rate]
        found[entry.get("run_name", entry["name"])] = result
    return found


def ratios(new, old):
    """By name, the new time in parts of the old one."""
    return {name: new[name]["nanoseconds"] / old[name]["nanoseconds"] for name in new if name in old and old[name]["nanoseconds"] > 0}


def readable(value, units):
    """In the largest unit of which there is one, or in the last."""
    factor, unit = next((each for each in units if value >= each[0]), units[-1])
    return f"{value / factor:.3g} {unit}"


def time_of(result):
    return readable(result["nanoseconds"], [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")])


def rate_of(result):
    if "bytes_per_second" in result:
        return readable(result["bytes_per_second"], [(1e9, "GB/s"), (1e6, "MB/s"), (1, "B/s")])
    if "items_per_second" in result:
        return readable(result["items_per_second"], [(1e9, "G/s"), (1e6, "M/s"), (1e3, "k/s"), (1, "/s")])
    return ""


def table(results, against):
    """In Markdown; with a stored run, its ratios."""
    found = ratios(results, against)
    lines = ["| benchmark | time | rate |" + (" time, ratio |" if against else ""), "|---|---|---|" + ("---|" if against else "")]
    for name, result in results.items():
        cells = [f"`{name}`", time_of(result), rate_of(result)]
        if against:
            cells.append(f"{found[name]:.2f}" if name in found else "new")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def series(results):
    """Lines of a plot: for each benchmark that ran with several numbers of threads, or several last arguments, (x, result)."""
    lines = collections.defaultdict(list)
    for name, result in results.items():
        parts = [part for part in name.split("/") if not NOTES.match(part)]
        places = [i for i, part in enumerate(parts) if re.fullmatch(r"(threads:|\w+:)?\d+", part)]
        if places:
            at = next((i for i in places if parts[i].startswith("threads:")), places[-1])
            axis, _, number = parts[at].rpartition(":")
            lines[axis or "argument", "/".join(parts[:at] + parts[at + 1 :])].append((int(number), result))
    return {key: sorted(points, key=lambda point: point[0]) for key, points in lines.items() if len({x for x, _ in points}) > 1}


def draw(results, title, path):
    """A plot for each axis; the files that were written. Needs matplotlib."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    written = []
    lines = series(results)
    for axis in sorted({axis for axis, _ in lines}):
        figure, plot = pyplot.subplots(figsize=(9, 5))
        for (_, label), points in ((key, points) for key, points in lines.items() if key[0] == axis):
            by_rate = all("bytes_per_second" in result for _, result in points)
            values = [result["bytes_per_second"] / 1e9 if by_rate else result["nanoseconds"] for _, result in points]
            plot.plot([x for x, _ in points], values, marker="o", markersize=3, label=label + (", GB/s" if by_rate else ", ns"))
        plot.set(xscale="log", yscale="log", xlabel=axis, title=title)
        plot.legend(fontsize=5)
        target = path.with_name(f"{path.name}.{axis}.svg")
        figure.savefig(target)
        pyplot.close(figure)
        written.append(target)
    return written
