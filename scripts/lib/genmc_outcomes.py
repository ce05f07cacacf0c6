"""What GenMC says of a scene, and the table of docs/testing.md on all that it said."""

import collections
import re

# "" for no error, an error of the scene, or None where the model checker came to no end; what is said of it; counts where it came to one.
Outcome = collections.namedtuple("Outcome", ["found", "words", "executions", "seconds"], defaults=[0, 0.0])


def outcome_of(said):
    explored = re.search(r"executions explored: (\d+)", said)
    took = re.search(r"wall-clock time: ([\d.]+)", said)
    counts = int(explored[1]) if explored else 0, float(took[1]) if took else 0.0
    if "No errors were detected" in said:
        return Outcome("", f"{counts[0]} executions, {counts[1]:.1f} s", *counts)
    error = re.search(r"^(?:Assertion violation|Error): .*", said, flags=re.MULTILINE)
    violation = re.search(r"^Assertion violation: .*", said, flags=re.MULTILINE)
    found = violation or error
    return Outcome(found[0], found[0], *counts) if found and explored else Outcome(None, last_line(said))


def table(outcomes):
    """Of triples of a component, a fault or None, and its outcome."""
    yield "| component | scenes | executions | of one scene, at most | time of all scenes | planted faults | found |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for component in dict.fromkeys(component for component, _, _ in outcomes):
        scenes = [outcome for of, fault, outcome in outcomes if of == component and not fault]
        faults = [outcome for of, fault, outcome in outcomes if of == component and fault]
        executions, seconds = [scene.executions for scene in scenes], sum(scene.seconds for scene in scenes)
        cells = [f"`{component}`", len(scenes), f"{sum(executions):,}", f"{max(executions):,}", f"{seconds:.1f} s", len(faults)]
        yield f"| {' | '.join(map(str, cells))} | {sum(bool(fault.found) for fault in faults)} |"


def last_line(said):
    lines = said.strip().splitlines()
    return lines[-1] if lines else "the model checker says nothing"
