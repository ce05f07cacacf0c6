#!/usr/bin/env python3
"""Turns a log of events into a trace that Perfetto (https://ui.perfetto.dev) and chrome://tracing open.

Reads the lines of an `event_log`, each behind its time in microseconds, as examples/watched_engine.cpp writes them. Lines without
times, as `replay --log` writes them, get their number as the time. Each request has a track with its whole life, the times in which
it ran and was preempted, and the events of its sequences; the cache has tracks for steps and blocks, and counts of requests.
"""

import argparse
import json
import sys

REQUESTS, CACHE = 1, 2  # "processes" of the trace
STEPS, BLOCKS = 1, 2  # "threads" of the second
OF_SEQUENCES = {"admitted", "hit", "forked", "released"}
OF_BLOCKS = {"stored", "evicted", "copied", "refused", "reset"}
NEEDED = {"started": {"request", "sequence"}, "preempted": {"request"}, "ended": {"request"},
          "step_begun": {"step"}, "step_retired": {"step"}}  # fields


def parse(lines):
    """Time, kind and fields of each event; raises `ValueError` for a line that is none."""
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words:
            continue
        time = int(words.pop(0)) if words[0].isdigit() else number
        if not words or any("=" not in word for word in words[1:]):
            raise ValueError(f"line {number} is not an event: {line.strip()}")
        fields = dict(word.split("=", 1) for word in words[1:])
        if missing := NEEDED.get(words[0], set()) - set(fields):
            raise ValueError(f"line {number} has no {' and no '.join(sorted(missing))}: {line.strip()}")
        yield time, words[0], fields


class Request:
    """The spans of one request, and the events of its sequences."""

    def __init__(self, track, begin):
        self.track = track
        self.begin = begin
        self.end = None
        self.spans = []  # name, begin, end
        self.marks = []  # time, name, fields
        self.state = None

    def enter(self, state, time):
        self.leave(time)
        self.state = state, time

    def leave(self, time):
        if self.state:
            self.spans.append((*self.state, time))
        self.state = None


def collect(events):
    """Requests by id, in the order of their starts; spans of steps; and events of blocks."""
    events = list(events)
    owner = {fields["sequence"]: fields["request"] for _, kind, fields in events if kind == "started"}
    requests, early, steps, blocks = {}, {}, [], []
    open_steps = {}
    last = events[-1][0] if events else 0
    for time, kind, fields in events:
        if kind == "started":
            request = requests.setdefault(fields["request"], Request(len(requests) + 1, time))
            for mark in early.pop(fields["sequence"], []):  # creation comes before the start
                request.begin = min(request.begin, mark[0])
                request.marks.append(mark)
            request.enter("running", time)
        elif kind in ("preempted", "ended") and fields["request"] in requests:
            request = requests[fields["request"]]
            if kind == "preempted":
                request.enter("preempted", time)
            else:
                request.leave(time)
                request.end = time
        elif kind in OF_SEQUENCES and fields.get("sequence") in owner:
            request = requests.get(owner[fields["sequence"]])
            where = request.marks if request and kind == "released" else early.setdefault(fields["sequence"], [])
            where.append((time, kind, fields))
        elif kind == "step_begun":
            open_steps[fields["step"]] = time
        elif kind == "step_retired" and fields["step"] in open_steps:
            steps.append((fields["step"], open_steps.pop(fields["step"]), time))
        elif kind in OF_BLOCKS:
            blocks.append((time, kind, fields))
    for request in requests.values():
        request.leave(last)
        request.end = max([last if request.end is None else request.end, *(time for time, _, _ in request.marks)])
    steps += [(step, begin, last) for step, begin in open_steps.items()]
    return requests, steps, blocks


def name(process, thread, text):
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": text}}


def span(process, thread, text, begin, end, **args):
    return {"ph": "X", "name": text, "pid": process, "tid": thread, "ts": begin, "dur": end - begin, "args": args}


def mark(process, thread, text, time, fields):
    return {"ph": "i", "s": "t", "name": text, "pid": process, "tid": thread, "ts": time, "args": fields}


def of_request(number, request):
    track = request.track
    yield name(REQUESTS, track, f"request {number}")
    yield span(REQUESTS, track, "request", request.begin, request.end, request=number)
    for state, begin, end in request.spans:
        yield span(REQUESTS, track, state, begin, end)
    for time, kind, fields in request.marks:
        yield mark(REQUESTS, track, kind, time, fields)


def counts(requests):
    """How many requests run and wait, after each change."""
    changes = []
    for request in requests.values():
        for state, begin, end in request.spans:
            changes += [(begin, state, 1), (end, state, -1)]
    now = {"running": 0, "preempted": 0}
    after = {}
    for time, state, change in sorted(changes):
        now[state] += change
        after[time] = dict(now)
    for time, numbers in after.items():
        yield {"ph": "C", "name": "requests", "pid": CACHE, "tid": 0, "ts": time, "args": numbers}


def of_cache(steps, blocks):
    yield name(CACHE, STEPS, "steps")
    yield name(CACHE, BLOCKS, "blocks")
    for step, begin, end in steps:  # several may be in flight, so they are asynchronous
        common = {"cat": "step", "id": step, "name": f"step {step}", "pid": CACHE, "tid": STEPS}
        yield {"ph": "b", "ts": begin, **common}
        yield {"ph": "e", "ts": end, **common}
    for time, kind, fields in blocks:
        yield mark(CACHE, BLOCKS, kind, time, fields)


def make_trace(events, chosen=None):
    """The trace of all requests, or of one with what the cache did meanwhile. Raises `KeyError` if there is no such request."""
    requests, steps, blocks = collect(events)
    shown = requests
    if chosen is not None:
        shown = {chosen: requests[chosen]}
        begin, end = shown[chosen].begin, shown[chosen].end
        steps = [step for step in steps if step[1] <= end and step[2] >= begin]
        blocks = [block for block in blocks if begin <= block[0] <= end]
    made = [{"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": text}}
            for process, text in ((REQUESTS, "requests"), (CACHE, "cache"))]
    for number, request in shown.items():
        made += of_request(number, request)
    made += [*counts(shown), *of_cache(steps, blocks)]
    return {"displayTimeUnit": "ms", "traceEvents": made}


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("log", help="a file of lines, or - for standard input")
    options.add_argument("--request", help="only this request's life, by its id in the log, and what the cache did meanwhile")
    options.add_argument("--output", default="-", help="where the trace goes; standard output unless given")
    chosen = options.parse_args()
    try:
        with sys.stdin if chosen.log == "-" else open(chosen.log) as lines:
            trace = make_trace(parse(lines), chosen.request)
        with sys.stdout if chosen.output == "-" else open(chosen.output, "w") as file:
            json.dump(trace, file)
            file.write("\n")
    except KeyError:
        sys.exit(f"trace.py: no request {chosen.request} in {chosen.log}")
    except (OSError, ValueError) as problem:
        sys.exit(f"trace.py: {problem}")


if __name__ == "__main__":
    main()
