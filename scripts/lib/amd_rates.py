"""The share of a device's memory rate that a kernel's code allows, calculated from its assembly.

Two limits. Issue: the cycles in which a SIMD issues the instructions of the steady loop for every wave, against the bytes that these
move. Flight: the bytes that all waves have asked for and not yet received, against rate times latency (Little's law).
"""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Device:
    name: str
    target: str
    bytes_per_second: float  # published
    processors: int  # published
    clock: float  # published, the highest, in hertz
    simds: int  # of a processor
    lanes: int  # of a wave
    latency: float  # of memory under load, in seconds: assumed
    cycles: dict  # of an instruction, by unit


# A matrix instruction takes its operations over the published rate of a SIMD: 16 x 16 x 16 of 16 bits in 16 cycles on CDNA 3, in 32 on
# RDNA 3. Loads, stores and LDS: 64 bytes a cycle and processor, which its SIMDs share.
MI300X = Device("MI300X", "gfx942", 5.3e12, 304, 2.1e9, 4, 64, 800e-9,
                {"vector": 4, "slow": 16, "matrix": 16, "scalar": 1, "wait": 1})
RX7900XTX = Device("RX 7900 XTX", "gfx1100", 960e9, 96, 2.5e9, 2, 32, 500e-9,
                   {"vector": 1, "slow": 4, "matrix": 32, "scalar": 1, "wait": 1})
DEVICES = [MI300X, RX7900XTX]

# Transcendental functions and multiplications of 32 bits take four times as long as other instructions.
SLOW = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|mul_lo_u32|mul_hi_|mul_lo_i32|mad_u64_u32|mad_i64_i32|mad_co_u64)")
WIDTHS = {"ubyte": 1, "sbyte": 1, "u8": 1, "i8": 1, "b8": 1, "byte": 1, "ushort": 2, "sshort": 2, "short": 2, "u16": 2, "i16": 2,
          "b16": 2, "dword": 4, "b32": 4, "dwordx2": 8, "b64": 8, "dwordx3": 12, "b96": 12, "dwordx4": 16, "b128": 16}


@dataclasses.dataclass
class Instruction:
    unit: str
    bytes: int = 0  # of a lane
    left: int = -1  # loads that may be under way after a wait


@dataclasses.dataclass
class Rates:
    """Of a wave's steady loop."""

    instructions: dict  # by unit
    loaded: float  # bytes
    stored: float
    in_flight: float
    issue: float  # shares of the memory rate, 1 at most
    flight: float

    @property
    def share(self):
        return min(self.issue, self.flight)


def decode(line):
    name, _, operands = line.strip().partition(" ")
    name, _, _ = name.partition("\t")
    operands = line.strip()[len(name):]
    if name.startswith(("global_load", "global_store", "buffer_load", "buffer_store")):
        kind, width = name.split("_")[1], name.split("_")[2]
        return Instruction(kind, WIDTHS.get(width, 4))
    if name.startswith("ds_"):
        found = re.search(r"b(\d+)$", name)
        pair = 2 if re.search(r"(read2|write2|load_2addr|store_2addr)", name) else 1
        return Instruction("lds", pair * (int(found.group(1)) // 8 if found else 4))
    if name.startswith(("v_mfma", "v_wmma", "v_smfmac")):
        return Instruction("matrix")
    if name.startswith("v_"):
        # Two instructions in one.
        return Instruction("slow" if SLOW.match(name) else "vector")
    if name.startswith("s_waitcnt"):
        found = re.search(r"vmcnt\((\d+)\)", operands)
        return Instruction("wait", left=int(found.group(1)) if found else -1)
    if name.startswith("s_wait_loadcnt"):
        return Instruction("wait", left=int(operands.strip(), 0))
    return Instruction("scalar") if name.startswith("s_") else None


def parse(assembly):
    """By function: its instructions, and its loops as ranges of them."""
    functions = {}
    name = None
    for line in assembly.splitlines():
        label = re.match(r"([A-Za-z_.]\w*):", line)
        if label and not label.group(1).startswith("."):
            name, code, labels, loops = label.group(1), [], {}, []
            functions[name] = (code, loops)
        elif label and name:
            labels[label.group(1)] = len(code)
        elif name and line.startswith("\t.section"):
            name = None
        elif name and re.match(r"\s+[a-z]", line):
            instruction = decode(line)
            if instruction:
                code.append(instruction)
            target = re.match(r"\s+s_c?branch\w*\s+(\.\w+)", line)
            if target and target.group(1) in labels:
                loops.append((labels[target.group(1)], len(code)))
    return functions


# Kernels whose rate is that of memory. Those over rows that are not aligned, which end in 1, are not. Attention with plain arithmetic
# has too many branches to find what one turn executes.
BY_MEMORY = re.compile(r"(append|rope_append|gather|append_tiles|gather_tiles|copy_blocks|move_blocks|swap_blocks|convert_blocks|"
                       r"convert_tiles|attend)_kernel<(?!.*(, 1|byte)>$)")


def table(kernels):
    """Lines of a table. `kernels`: by name, then by device, rates and waves."""
    lines = [
        "| kernel | " + " | ".join(device.name for device in DEVICES) + " |",
        "|---|" + "---|" * len(DEVICES),
    ]
    for name, by_device in sorted(kernels.items()):
        cells = [cell(*by_device[device.name]) if device.name in by_device else "" for device in DEVICES]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def cell(found, waves):
    units = found.instructions
    count = lambda *names: sum(units.get(name, 0) for name in names)
    return (f"{count('vector')} + {count('slow')} / {count('matrix')} / {count('lds')} / {count('load', 'store')}; "
            f"{found.loaded + found.stored:.0f}; {waves} × {found.in_flight:.0f}; {found.issue:.2f} / {found.flight:.2f}")


def moved(code):
    return sum(i.bytes for i in code if i.unit in ("load", "store"))


def products(code):
    return sum(i.unit == "matrix" for i in code)


def steady_loop(code, loops):
    """The smallest loop with at least half as many matrix instructions as any has; where none has, that moves at least half as many
    bytes as any does; all code where no loop moves a quarter of them."""
    ranges = [code[begin:end] for begin, end in loops]
    multiplying = max((products(loop) for loop in ranges), default=0)
    if multiplying:
        return min((loop for loop in ranges if 2 * products(loop) >= multiplying), key=len)
    most = max((moved(loop) for loop in ranges), default=0)
    if most == 0 or 4 * most < moved(code):
        return code
    return min((loop for loop in ranges if 2 * moved(loop) >= most), key=len)


def most_in_flight(loop, turns=2):
    """Bytes of a lane that are asked for and not received, at most. Loads return in order."""
    pending, most = [], 0
    for instruction in loop * turns:
        if instruction.unit == "load":
            pending.append(instruction.bytes)
            most = max(most, sum(pending))
        elif instruction.unit == "wait" and instruction.left >= 0:
            pending = pending[-instruction.left:] if instruction.left else []
    return most


def issue_cycles(loop, device):
    """Cycles of a SIMD for one wave. Units that all SIMDs of a processor share count for each."""
    shared_bytes = sum(i.bytes for i in loop if i.unit in ("load", "store", "lds")) * device.lanes
    cycles = {unit: 0 for unit in ("vector", "slow", "matrix", "scalar", "wait")}
    for instruction in loop:
        if instruction.unit in cycles:
            cycles[instruction.unit] += device.cycles[instruction.unit]
    own = cycles["vector"] + cycles["slow"]
    # Units work side by side for different waves.
    return max(own, cycles["matrix"], cycles["scalar"] + cycles["wait"], shared_bytes / 64 * device.simds)


def bytes_of_tile(kernel):
    """Keys and values that a decode kernel reads in a turn of its loop; None for other kernels."""
    found = re.match(r"attend_kernel<(\w+), [^,]+(?:<.*?>)?, (\d+), ", kernel)
    if not found:
        return None
    size = 1 if found.group(1).startswith(("int8", "float8")) else 2
    return 2 * 16 * int(found.group(2)) * size


def rates(kernel, code, loops, waves, device):
    """`kernel`: its name. `waves`: of a SIMD."""
    loop = steady_loop(code, loops)
    loaded = sum(i.bytes for i in loop if i.unit == "load") * device.lanes
    stored = sum(i.bytes for i in loop if i.unit == "store") * device.lanes
    in_flight = most_in_flight(loop, 1 if loop is code else 2) * device.lanes
    tile = bytes_of_tile(kernel)
    if tile and loaded:
        # The loop has code for several block sizes, of which one runs. All of its instructions are counted.
        in_flight *= tile / loaded
        loaded, stored = tile, 0
    units = {}
    for instruction in loop:
        units[instruction.unit] = units.get(instruction.unit, 0) + 1
    simds = device.processors * device.simds
    all_bytes = loaded + stored
    issue = simds * all_bytes * device.clock / issue_cycles(loop, device) / device.bytes_per_second if all_bytes else 0
    # Stores need no wave to wait, so they come on top of what loads allow.
    read_share = loaded / (loaded + stored) if loaded else 1
    flight = simds * waves * in_flight / device.latency / (device.bytes_per_second * read_share) if loaded else 1
    return Rates(units, loaded, stored, in_flight, min(1, issue), min(1, flight))
