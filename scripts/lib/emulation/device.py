"""Executes kernels instruction by instruction, with the emulator of AMD's GPUs of a tinygrad checkout. runtime.cpp imports it.

From the environment: EMULATED_TARGETS are the devices by commas, EMULATED_TINYGRAD is the checkout, EMULATED_REPORT a file for
what was executed, in JSON.
"""

import ctypes
import json
import math
import os
import sys
import traceback

sys.path.insert(0, os.environ["EMULATED_TINYGRAD"])
import code_objects  # noqa: E402

import mends  # noqa: E402

ENDED, WAITING, MISSING, ENDLESS, OUTSIDE = range(5)
MOST_STEPS = 100_000_000  # of a wave between two barriers
UNKNOWN = 0xA5  # bytes of workgroup memory that nobody has written


class Instruction(ctypes.Structure):
    """As runtime.cpp has it."""

    _fields_ = [
        ("run", ctypes.c_void_p),
        ("buffers", ctypes.c_uint8 * 6),
        ("ends_at_barrier", ctypes.c_uint8),
        ("times", ctypes.c_uint64),
    ]


def family(target):
    return "cdna" if target.startswith("gfx9") else "rdna3" if target.startswith("gfx11") else "rdna4"


class Kernel:
    def __init__(self, code_object, name):
        self.name = name
        self.descriptor = code_objects.Descriptor(code_object, name)
        self.parameters = code_object.arguments[name]
        self.start, self.bytes = code_object.symbols[name]
        self.instructions = (Instruction * (self.bytes // 4))()
        self.names = {}
        self.launches = 0

    def arguments(self, pointers, grid, workgroup):
        """Explicit ones, and what the compiler adds about the grid."""
        block = bytearray(self.descriptor.argument_bytes + 64)
        given = iter(pointers)
        for parameter in self.parameters:
            kind, at, size = parameter[".value_kind"], parameter[".offset"], parameter[".size"]
            if kind.startswith("hidden_"):
                block[at : at + size] = hidden(kind, grid, workgroup).to_bytes(size, "little")
            else:
                block[at : at + size] = ctypes.string_at(next(given), size)
        return block


def hidden(kind, grid, workgroup):
    if kind == "hidden_grid_dims":
        return 3 if grid[2] > 1 else 2 if grid[1] > 1 else 1
    values = {"hidden_block_count_": grid, "hidden_group_size_": workgroup}.get(kind[:-1])
    return values["xyz".index(kind[-1])] if values else 0


class Machine:
    def __init__(self, targets):
        if len({family(target) for target in targets}) != 1:
            raise ValueError("devices of several families")
        self.targets = targets
        self.family = family(targets[0])
        self.wave_size = 64 if self.family == "cdna" else 32
        self.emulator = mends.load(targets[0])
        self.kernels = {}
        self.loaded = {}
        self.compiled = []
        self.failure = None
        self.steps = ctypes.c_uint64()
        self.program = ctypes.CDLL(None)
        self.program.emulated_workgroup_memory.restype = ctypes.c_void_p
        self.program.emulated_workgroup_memory.argtypes = [ctypes.c_size_t]
        self.program.emulated_run_wave.argtypes = [
            ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p,
            ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p,
        ]  # fmt: skip
        pointers = ctypes.POINTER(ctypes.c_void_p)
        sizes = ctypes.POINTER(ctypes.c_uint)
        launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, sizes, pointers, ctypes.c_size_t)
        self.launched = launch(self.launch)
        self.program.emulated_launches_by(self.launched)

    def launch(self, device, bundle, name, sizes, pointers, dynamic_bytes):
        try:
            if not self.failure:
                kernel = self.kernel(self.targets[device], bundle, name.decode())
                kernel.launches += 1
                self.run_grid(kernel, pointers, tuple(sizes[:3]), tuple(sizes[3:6]), dynamic_bytes)
        except Exception as problem:  # nobody above takes it
            self.failure = f"{name.decode()}: {problem}"
            traceback.print_exc()
        return 1 if self.failure else 0

    def kernel(self, target, bundle, name):
        if (target, bundle) not in self.loaded:
            self.loaded[target, bundle] = code_objects.CodeObject(code_objects.find_in_bundle(bundle, target))
        key = target, bundle, name
        if key not in self.kernels:
            self.kernels[key] = Kernel(self.loaded[target, bundle], name)
        return self.kernels[key]

    def run_grid(self, kernel, pointers, grid, workgroup, dynamic_bytes):
        descriptor = kernel.descriptor
        if descriptor.wave_size != self.wave_size:
            raise ValueError(f"waves of {descriptor.wave_size} lanes")
        arguments = (ctypes.c_char * (descriptor.argument_bytes + 64))(*kernel.arguments(pointers, grid, workgroup))
        lds_bytes = math.ceil((descriptor.lds + dynamic_bytes) / 16) * 16
        lds = self.program.emulated_workgroup_memory(lds_bytes)
        scratch = (ctypes.c_uint8 * max(descriptor.scratch * self.wave_size, 1))()
        for place in ((x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])):
            ctypes.memset(lds, UNKNOWN, lds_bytes)
            waves = [
                self.make_wave(kernel, place, workgroup, first, ctypes.addressof(arguments), lds, scratch)
                for first in range(0, math.prod(workgroup), self.wave_size)
            ]
            self.run_workgroup(kernel, waves)

    def make_wave(self, kernel, place, workgroup, first_lane, arguments, lds, scratch):
        descriptor = kernel.descriptor
        wave = self.emulator._init_wave(
            kernel.start, first_lane, math.prod(workgroup), *workgroup, arguments, descriptor.resources, descriptor.scratch,
            self.family, *place, descriptor.first_scalars(arguments), self.wave_size,
        )  # fmt: skip
        buffers = (ctypes.c_void_p * 6)(
            wave.sgpr_buf._buf.va_addr, wave.vgpr_buf._buf.va_addr, 0, lds, ctypes.addressof(scratch),
            wave.accvgpr_buf._buf.va_addr,
        )  # fmt: skip
        # All registers but those that a wave starts with hold anything.
        ctypes.memset(buffers[1] + 4 * self.wave_size, 0xFE, 4 * 255 * self.wave_size)
        if self.wave_size == 64:
            ctypes.memset(buffers[5], 0xFE, 4 * 256 * self.wave_size)
        return wave, buffers

    def run_workgroup(self, kernel, waves):
        while waves:
            waves = [wave for wave in waves if self.run_wave(kernel, *wave) == WAITING]

    def run_wave(self, kernel, wave, buffers):
        while True:
            state = self.program.emulated_run_wave(
                ctypes.addressof(kernel.instructions), kernel.start, kernel.bytes, buffers[0], ctypes.addressof(buffers),
                MOST_STEPS, kernel.descriptor.flushes, kernel.name.encode(), ctypes.addressof(self.steps),
            )  # fmt: skip
            if state in (ENDED, WAITING):
                return state
            if state != MISSING:
                raise RuntimeError(f"at offset {wave.pc - kernel.start:#x}: " + ("no end" if state == ENDLESS else "left its code"))
            self.compile(kernel, wave.pc)

    def compile(self, kernel, address):
        emulator = self.emulator
        (program, runtime), decoded = emulator._decode_at(address, self.family)
        entry = kernel.instructions[(address - kernel.start) // 4]
        for i, buffer in enumerate(program.arg.globals):
            entry.buffers[i] = buffer
        entry.ends_at_barrier = getattr(decoded, "op", None) in emulator._BARRIER_OPS | emulator._BARRIER_SOP1_OPS
        kernel.names[(address - kernel.start) // 4] = emulator._op_name(decoded)
        self.compiled.append(runtime)
        entry.run = ctypes.cast(runtime.fxn, ctypes.c_void_p).value

    def report(self):
        kernels = [
            {
                "kernel": kernel.name,
                "target": target,
                "launches": kernel.launches,
                "reached": sum(entry.times > 0 for entry in kernel.instructions),
                "instructions": sorted(set(kernel.names.values())),
            }
            for (target, _, _), kernel in self.kernels.items()
        ]
        return {"failure": self.failure, "steps": self.steps.value, "kernels": kernels}


machine = Machine(os.environ["EMULATED_TARGETS"].split(","))


def end():
    report = machine.report()
    if "EMULATED_REPORT" in os.environ:
        with open(os.environ["EMULATED_REPORT"], "w") as file:
            json.dump(report, file, indent=1)
    if report["failure"]:
        print(f"emulator: {report['failure']}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(4)
