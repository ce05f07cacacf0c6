"""What programs of this folder that run on the host print, and leave as JSON for `scripts/bench --tables --from`."""

import datetime
import json
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "lib"))
import bench_results  # noqa: E402
from report_rows import machine, name_of  # noqa: E402, F401

UNITS = {"avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_tile": "AMX"}


def processor():
    """Its model, and the units that figures depend on."""
    facts = dict(re.findall(r"^(model name|flags)\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), flags=re.MULTILINE))
    flags = facts.get("flags", "").split()
    units = [unit for flag, unit in UNITS.items() if flag in flags]
    return facts.get("model name", os.uname().machine) + (f" with {', '.join(units)}" if units else "")


def report(areas, versions, file):
    """`areas`: rows by area, figures by row. `versions`: the peers, as `vLLM 1.2`."""
    where = f"{processor()}, {datetime.date.today()}"
    for rows in areas.values():
        print(bench_results.table(rows, {}) + "\n")
    if file:
        file.write_text(json.dumps(areas | {"machines": {area: machine(where, versions) for area in areas}}, indent=1) + "\n")
