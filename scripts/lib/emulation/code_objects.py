"""AMD's code objects: the bundle of a program, its ELF in memory, kernels and their arguments."""

import ctypes
import io
import mmap
import struct

import msgpack
from elftools.elf.elffile import ELFFile

MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"
METADATA = 32  # the type of the note
RELATIVE = 13  # the only relocation of code without external symbols
PAGE = 4096


def find_in_bundle(address, target):
    """The code object for a target in the bundle at an address."""
    if ctypes.string_at(address, len(MAGIC)) != MAGIC:
        raise ValueError("the bundle is compressed, or none")
    at = address + len(MAGIC) + 8
    for _ in range(ctypes.c_uint64.from_address(address + len(MAGIC)).value):
        offset, size, length = struct.unpack("<3Q", ctypes.string_at(at, 24))
        entry = ctypes.string_at(at + 24, length).decode()
        at += 24 + length
        if entry.partition("--")[2].partition(":")[0] == target:
            return ctypes.string_at(address + offset, size)
    raise ValueError(f"the program has no code for {target}")


class CodeObject:
    """Lies in memory of this process as a loader would put it there."""

    def __init__(self, data):
        elf = ELFFile(io.BytesIO(data))
        loaded = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        end = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loaded)
        # Instructions are decoded from 16 bytes.
        self.memory = mmap.mmap(-1, (end // PAGE + 2) * PAGE)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        for segment in loaded:
            self.memory[segment["p_vaddr"] : segment["p_vaddr"] + segment["p_filesz"]] = segment.data()
        self.symbols = {s.name: (self.start + s["st_value"], s["st_size"]) for s in elf.get_section_by_name(".dynsym").iter_symbols()}
        for section in elf.iter_sections():
            if section["sh_type"] == "SHT_RELA":
                self.relocate(section)
        notes = [note for segment in elf.iter_segments() if segment["p_type"] == "PT_NOTE" for note in notes_in(segment.data())]
        described = [kernel for kind, text in notes if kind == METADATA for kernel in msgpack.unpackb(text)["amdhsa.kernels"]]
        self.arguments = {kernel[".name"]: kernel.get(".args", []) for kernel in described}

    def relocate(self, section):
        for relocation in section.iter_relocations():
            if relocation["r_info_type"] != RELATIVE:
                raise ValueError(f"a relocation of type {relocation['r_info_type']}")
            struct.pack_into("<Q", self.memory, relocation["r_offset"], self.start + relocation["r_addend"])


def notes_in(data):
    at = 0
    while at < len(data):
        name, size, kind = struct.unpack_from("<3I", data, at)
        at += 12 + (name + 3) // 4 * 4
        yield kind, data[at : at + size]
        at += (size + 3) // 4 * 4


class Descriptor:
    """What a kernel asks of the hardware: LLVM's "User Guide for AMDGPU Backend", "Kernel Descriptor"."""

    def __init__(self, code, kernel):
        address, _ = code.symbols[kernel + ".kd"]
        data = ctypes.string_at(address, 64)
        self.lds, self.scratch, self.argument_bytes = struct.unpack_from("<3I", data)
        self.entry = address + struct.unpack_from("<q", data, 16)[0]
        resources, self.resources, self.properties, preloaded = struct.unpack_from("<2I2H", data, 48)
        if preloaded:
            raise ValueError("arguments in registers are not emulated")
        rounding, subnormals = resources >> 12 & 15, resources >> 16 & 3
        if rounding or subnormals not in (0, 3):
            raise ValueError("this mode of floating point is not emulated")
        self.flushes = subnormals == 0
        self.wave_size = 32 if self.properties >> 10 & 1 else 64

    def first_scalars(self, arguments):
        """Those in front of the workgroup's place in the grid."""
        sizes = {0: 4, 1: 2, 2: 2, 3: 2, 4: 2, 5: 2, 6: 1}
        scalars = []
        for bit, size in sizes.items():
            if self.properties >> bit & 1:
                if bit in (1, 2, 4):
                    raise ValueError("packets and queues are not emulated")
                scalars += [arguments & 0xFFFFFFFF, arguments >> 32] if bit == 3 else [0] * size
        return scalars
