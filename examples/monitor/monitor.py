#!/usr/bin/env python3
"""Shows running caches in a terminal, from the Prometheus text that they write: monitor.py http://127.0.0.1:9400/metrics, or
monitor.py FILE. Rates are those between the last two readings. Ctrl-C ends it."""

import argparse
import http.client
import re
import shutil
import sys
import time
import urllib.request

SAMPLE = re.compile(r"(pagedkv_\w+)(?:\{(.*)\})? (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?: \d+)?")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Labels of the library's own, which tell the samples of one cache apart.
OWN_LABELS = {"state", "kind", "purpose", "outcome"}
LONGEST = 86_400  # seconds between two readings
STATES = (("in_use", "in use", "█"), ("retiring", "retiring", "▓"), ("evictable", "evictable", "▒"), ("free", "free", "░"))


def unescape(text):
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def parse(text):
    """The values of each labelled cache or tier, as {labels: {(name, own label's value): value}}."""
    found = {}
    for line in text.splitlines():
        sample = SAMPLE.fullmatch(line.strip())
        if not sample:
            continue  # a comment, or another library's
        labels = {name: unescape(value) for name, value in LABEL.findall(sample[2] or "")}
        own = "".join(value for name, value in labels.items() if name in OWN_LABELS)
        others = tuple(sorted((name, value) for name, value in labels.items() if name not in OWN_LABELS))
        found.setdefault(others, {})[sample[1].removeprefix("pagedkv_"), own] = float(sample[3])
    return found


class Reading:
    """What one cache or tier says now, and what it said before."""

    def __init__(self, now, before=None, seconds=0.0):
        self.now = now
        self.before = before
        self.seconds = seconds

    def value(self, name, own=""):
        return self.now.get((name, own), 0.0)

    def has(self, name):
        return any(each == name for each, _ in self.now)

    def growth(self, name, own=""):
        """Of a counter since the reading before; since its start if there was none or the process began anew."""
        value = self.value(name, own)
        earlier = self.before.get((name, own), 0.0) if self.before else 0.0
        return value - earlier if value >= earlier else value

    def rate(self, name, own=""):
        return self.growth(name, own) / self.seconds if self.before is not None and self.seconds > 0 else None


def short(number):
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= 10 * size:
            return f"{number / size:.1f}{unit}"
    return f"{number:.0f}"


def percent(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "–"


def per_second(reading, name, own=""):
    rate = reading.rate(name, own)
    return "–" if rate is None else f"{rate:.1f}/s" if rate < 100 else f"{short(rate)}/s"


def bar(reading, width):
    """The pool, a character for each share of its blocks."""
    total = sum(reading.value("pool_blocks", state) for state, _, _ in STATES)
    drawn, seen = "", 0.0
    for state, _, sign in STATES:
        seen += reading.value("pool_blocks", state)
        drawn += sign * (round(width * seen / total) - len(drawn) if total else 0)
    return drawn


def cache_panel(reading, width):
    pool = {state: reading.value("pool_blocks", state) for state, _, _ in STATES}
    total = sum(pool.values())
    yield f"blocks    {short(total)}: " + ", ".join(f"{name} {percent(pool[state], total)} {sign}" for state, name, sign in STATES)
    yield f"          {bar(reading, width - 10)}"
    blocks, hits = "prompt_blocks_total", "hit_blocks_total"
    latest = percent(reading.growth(hits), reading.growth(blocks)) if reading.before is not None else "–"
    yield f"hits      {percent(reading.value(hits), reading.value(blocks))} of the prompts' blocks, {latest} since the last reading"
    yield (f"rates     prompts {per_second(reading, 'prompts_total')}, evicted {per_second(reading, 'evicted_blocks_total')}, "
           f"copied {per_second(reading, 'copied_blocks_total')}, refusals {per_second(reading, 'refusals_total')}")
    tokens, unfilled = reading.value("sequence_tokens"), reading.value("unfilled_slots")
    yield (f"sequences {short(reading.value('sequences'))} with {short(tokens)} tokens; {percent(unfilled, tokens + unfilled)} of their "
           f"slots are unfilled; most blocks in use {short(reading.value('peak_in_use_blocks'))}")
    if reading.has("memory_bytes"):
        parts = [reading.value("memory_bytes", purpose) for purpose in ("payload", "pool", "index", "sequences")]
        yield f"memory    {short(parts[0])}B of K and V, {short(sum(parts[1:]))}B beside it"
    if reading.has("contention_total") and any(reading.value("contention_total", kind) for kind in ("wait", "retry", "steal")):
        yield "threads   " + ", ".join(f"{kind} {per_second(reading, 'contention_total', kind)}" for kind in ("wait", "retry", "steal"))


def request_panel(reading):
    waiting, running, preempted = (reading.value("requests", state) for state in ("waiting", "running", "preempted"))
    ended = ", ".join(f"{outcome} {per_second(reading, 'ended_requests_total', outcome)}" for outcome in ("finished", "cancelled", "failed"))
    yield f"requests  {short(running)} running, {short(preempted)} preempted, {short(waiting)} waiting; {ended}"
    yield f"          preempted {per_second(reading, 'preemptions_total')}, refused {per_second(reading, 'refused_requests_total')}"


def tier_panel(reading):
    places = reading.value("tier_places")
    yield f"tier      {short(reading.value('tier_records'))} records" + (f" of {short(places)}" if places else "") + (
        f"; hits {per_second(reading, 'tier_hit_blocks_total')}, written {per_second(reading, 'tier_written_total')}, "
        f"evicted {per_second(reading, 'tier_evicted_total')}")
    yield (f"          lost writes {per_second(reading, 'tier_lost_writes_total')}, failed writes {per_second(reading, 'tier_failed_writes_total')}, "
           f"failed loads {per_second(reading, 'tier_failed_loads_total')}, owed {short(reading.value('tier_owed'))}")


def screen(now, before, seconds, width):
    """The lines for all caches and tiers."""
    if not now:
        yield "no metrics of pagedkv in this text"
    for labels, values in sorted(now.items()):
        reading = Reading(values, before.get(labels) if before else None, seconds)
        yield "── " + (" ".join(f"{name}={value}" for name, value in labels) or "cache") + " "
        if reading.has("pool_blocks"):
            yield from cache_panel(reading, width)
        if reading.has("requests"):
            yield from request_panel(reading)
        if reading.has("tier_records"):
            yield from tier_panel(reading)


# Of a source that cannot be read, or holds other text.
FAILURES = OSError, ValueError, OverflowError, http.client.HTTPException


def read(source):
    if re.match(r"https?://", source):
        with urllib.request.urlopen(source, timeout=5) as answer:
            return answer.read().decode()
    with open(source) as file:
        return file.read()


def show(lines, width, clear):
    cut = "\n".join(line[:width] for line in lines)
    sys.stdout.write(f"\x1b[H\x1b[J{cut}\n" if clear else f"{cut}\n")
    sys.stdout.flush()


def watch(source, interval):
    before, earlier = None, 0.0
    while True:
        width = min(shutil.get_terminal_size().columns, 120)
        try:
            now, time_of_now = parse(read(source)), time.monotonic()
            show(screen(now, before, time_of_now - earlier, width), width, sys.stdout.isatty())
            before, earlier = now, time_of_now
        except FAILURES as problem:  # it may come back
            show([f"{source}: {problem}"], width, sys.stdout.isatty())
        time.sleep(interval)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("source", help="a URL, or a file")
    options.add_argument("--interval", type=float, default=1.0, help="seconds between two readings")
    options.add_argument("--once", action="store_true", help="show one reading, without rates, and end")
    chosen = options.parse_args()
    if not 0 < chosen.interval <= LONGEST:
        options.error(f"--interval must be above 0, and at most {LONGEST}")
    if not chosen.once:
        try:
            watch(chosen.source, chosen.interval)
        except KeyboardInterrupt:
            return
    try:
        show(screen(parse(read(chosen.source)), None, 0.0, 120), 120, False)
    except FAILURES as problem:
        sys.exit(f"monitor.py: {chosen.source}: {problem}")


if __name__ == "__main__":
    main()
