"""What the emulator gets wrong or lacks of what compilers make of our kernels, put right when it is loaded.

Each mend says what the hardware does, by AMD's manuals of instruction sets and LLVM's. None was compared with hardware.
"""

import collections
import contextlib
import ctypes
import re

LOW_HALF, HIGH_HALF = 0xFFFF, 0xFFFF0000
Addend = collections.namedtuple("Addend", ["field", "mark", "constant"])


def load(target):
    """The emulator's module, which becomes one of `target`."""
    from test.mockgpu.amd import emu, pcode

    emu._Ctx = make_context(emu)
    mend_division(emu)
    mend_memory(emu)
    mend_halves(emu)
    mend_parts_of_registers(emu)
    mend_pairs(emu)
    mend_matrices(emu)
    mend_float8(emu, pcode, target)
    mend_missing(emu, target)
    return emu


def make_context(emu):
    """How instructions are compiled: registers, constants and memory as one of them sees them, by rules that mends switch on."""
    plain = emu._Ctx

    class Context(plain):
        __slots__ = ("rules", "lane", "pending", "lds", "vmem")

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.lds, self.vmem = plain.lds, plain.vmem
            self.rules = {}
            self.lane = None  # whose registers were read last
            self.pending = []  # what was read

        @contextlib.contextmanager
        def by(self, **rules):
            before, self.rules = self.rules, {**self.rules, **rules}
            try:
                yield
            finally:
                self.rules = before

        def inst_word(self, index):
            gated, self.vmem = self.vmem, plain.vmem
            try:
                return super().inst_word(index)
            finally:
                self.vmem = gated

        def inst_field(self, field):
            addend = self.rules.get("addend")
            if addend and (field.lo, field.hi) == addend.field:
                return addend.mark
            return super().inst_field(field)

        def optional_field(self, inst, name):
            return None if name == self.rules.get("without") else super().optional_field(inst, name)

        def rvgpr_dyn(self, reg, lane, valid=None):
            addend = self.rules.get("addend")
            if addend and addend.mark in reg.toposort():
                return addend.constant
            self.lane = lane
            value = super().rvgpr_dyn(reg, lane, valid)
            self.pending.append(value)
            return value

        def wvgpr_dyn(self, reg, lane, val, exec_mask, after=None):
            kept = self.rules.get("kept")
            if kept:
                half = val.cast(emu.dtypes.uint32) & emu._c(0xFFFF)
                placed = half << emu._c(16) if kept == LOW_HALF else half
                val = (self.rvgpr_dyn(reg, lane) & emu._c(kept)) | placed
            if not self.rules.get("reads_first"):
                return super().wvgpr_dyn(reg, lane, val, exec_mask, after)
            registers, self.vgpr = self.vgpr, self.vgpr.after(*dict.fromkeys(self.pending))
            try:
                return super().wvgpr_dyn(reg, lane, val, exec_mask)
            finally:
                self.vgpr = registers

        def rsrc_dyn(self, off, lane, bits=32, literal=None, is_f64=False, do_cast=True):
            literal = self.rules.get("literal") if literal is None else literal
            value = super().rsrc_dyn(off, lane, bits, literal, is_f64, do_cast)
            if self.rules.get("half_constants") and bits == 32:
                half = super().rsrc_dyn(off, lane, 16, literal, is_f64, do_cast)
                value = ((off >= emu._c(240)) & (off <= emu._c(248))).where(half, value)
            return value

        def compile_lane_pcode(self, op, inst):
            # Selections of lanes may be literals.
            with self.by(literal=self.optional_field(inst, "literal")):
                return super().compile_lane_pcode(op, inst)

    return Context


def wrap(emu, name, around):
    """Puts `around(original)` in the place of a function that compiles instructions, wherever the emulator calls it."""
    original = getattr(emu, name)
    mended = around(original)
    setattr(emu, name, mended)
    for kind, handler in list(emu._INST_HANDLERS.items()):
        if handler is original:
            emu._INST_HANDLERS[kind] = mended


# A quotient is found by v_div_scale, steps of Newton's, v_div_fmas and v_div_fixup. Operands are scaled by 2^64 where a step
# would leave the normal numbers. S0 is the one that is asked for, S1 the denominator, S2 the numerator.
SCALE = [
    ("exponent(S2.f32) - exponent(S1.f32) >= 96", 1, "(S0.f32 == S1.f32) ? ldexp(S0.f32, 64) : S0.f32"),
    ("isDENORM(S1.f32)", 0, "ldexp(S0.f32, 64)"),
    ("(exponent(S1.f32) >= 253) && divWouldBeDenorm(S2.f32, S1.f32)", 1, "(S0.f32 == S1.f32) ? ldexp(S0.f32, -64) : S0.f32"),
    ("exponent(S1.f32) >= 253", 0, "ldexp(S0.f32, -64)"),
    ("divWouldBeDenorm(S2.f32, S1.f32)", 1, "(S0.f32 == S2.f32) ? ldexp(S0.f32, 64) : S0.f32"),
    ("exponent(S2.f32) <= 23", 0, "ldexp(S0.f32, 64)"),
]


def mend_division(emu):
    """v_div_scale scales small numerators, too, and v_div_fmas rounds once, after the scale."""
    lines = ["VCC.u64[laneId] = 0;", "if ((64'F(S2.f32) == 0.0) || (64'F(S1.f32) == 0.0)) then", "D0.f32 = NAN.f32"]
    for condition, sets_vcc, value in SCALE:
        lines += [f"elsif {condition} then", *(["VCC.u64[laneId] = 1;"] if sets_vcc else []), f"D0.f32 = {value}"]
    scale = "\n".join([*lines, "else", "D0.f32 = S0.f32", "endif"])
    original = emu._fix_div_scale
    emu._fix_div_scale = lambda text, kind: scale if kind == "f32" else original(text, kind)
    fused = "fma(64'F(S0.f32), 64'F(S1.f32), 64'F(S2.f32))"
    emu._pcode_fixes["V_DIV_FMAS_F32"] = (
        "D0.f32 = 2.0F ** 32 * fma(S0.f32, S1.f32, S2.f32)",
        f"D0.f32 = f64_to_f32(((exponent(S2.f32) > 127) ? (2.0 ** 64) : (2.0 ** -64)) * {fused})",
    )


class GatedMemory:
    """Memory of which only active lanes touch anything; the others read 0."""

    def __init__(self, emu, context, memory, mask):
        self.emu, self.context, self.memory, self.mask = emu, context, memory, mask
        self.dtype = memory.dtype

    def index(self, place):
        return self.memory.index(place.valid(self.emu._lane_active(self.mask, self.context.lane)))


def mend_memory(emu):
    """Inactive lanes do not access workgroup memory, nor do they take part in atomics. A load of half a register leaves the other
    half. A flat instruction of CDNA has no scalar address, and RDNA4's compute their address as all others do."""

    def around(original):
        def compile_memory(inst, ctx):
            name = emu._op_name(inst)
            rules = {}
            if type(inst).__name__.startswith("FLAT") and isinstance(inst, emu.irc.FLAT):
                rules["without"] = "saddr"
            if name.startswith("DS_") and "D16" in name and "STORE" not in name and "WRITE" not in name:
                rules["kept"] = LOW_HALF if name.endswith("_HI") else HIGH_HALF
            plain = ctx.lds, ctx.vmem
            if name.startswith("DS_") and "PERMUTE" not in name:
                ctx.lds = GatedMemory(emu, ctx, ctx.lds, ctx.rexec())
            if "ATOMIC" in name:
                ctx.vmem = GatedMemory(emu, ctx, ctx.vmem, ctx.rexec())
            try:
                with ctx.by(**rules):
                    return original(inst, ctx)
            finally:
                ctx.lds, ctx.vmem = plain

        return compile_memory

    wrap(emu, "_compile_mem_op", around)
    address = re.compile(r"addr\s*=\s*CalcFlatAddr\([^)]*\)\s*;?\n?")
    for operation, text in list(emu.PCODE_RDNA4.items()):
        if "CalcFlatAddr" in text:
            emu.PCODE_RDNA4[operation] = address.sub("", text).replace("MEM[addr", "MEM[ADDR")


def mend_halves(emu):
    """An instruction of CDNA on 16 bits takes registers: v128 and following are no upper halves of others."""

    def around(original):
        def compile_vector(inst, ctx, **modifiers):
            registers = isinstance(inst, (emu.irc.VOP1, emu.irc.VOP2, emu.irc.VOPC)) and not hasattr(inst, "dpp")
            if not registers or 16 not in inst.canonical_op_bits.values():
                return original(inst, ctx, **modifiers)
            inst.canonical_op_bits = {name: max(bits, 32) for name, bits in inst.canonical_op_bits.items()}
            with ctx.by(half_constants=True):
                return original(inst, ctx, **modifiers)

        return compile_vector

    for name in ("_compile_vop12", "_compile_vopc"):
        wrap(emu, name, around)


def mend_parts_of_registers(emu):
    """Instructions on parts of registers take absolute values and change signs, too."""
    select = emu._sdwa_select
    operands = []

    def selected(raw, part, extend):
        value = select(raw, part, extend)
        inst = operands[0]
        name = f"src{(len(operands) - 1) % (2 if hasattr(inst, 'vsrc1') else 1)}"
        operands.append(name)
        absolute, negative = (int(bool(emu._iattr(inst, f"{name}_{what}"))) for what in ("abs", "neg"))
        if not absolute and not negative:
            return value
        bits = int(re.findall("F(16|32)", emu._op_name(inst))[-1])
        return emu._apply_src_mods(value, 0, absolute, negative, bits)

    def around(original):
        def compile_parts(inst, ctx):
            operands[:] = [inst]
            return original(inst, ctx)

        return compile_parts

    emu._sdwa_select = selected
    wrap(emu, "_compile_sdwa", around)


def mend_pairs(emu):
    """Both halves of a dual instruction read their registers before either writes one."""

    def around(original):
        def compile_pair(inst, ctx):
            ctx.pending = []
            with ctx.by(reads_first=True):
                return original(inst, ctx)

        return compile_pair

    wrap(emu, "_compile_vopd", around)


def mend_matrices(emu):
    """What is added to a product of matrices may be a constant."""
    mark = emu._c(0x10000)

    def around(original):
        def compile_product(inst, ctx):
            field = type(inst).src2
            where = field.lo, field.hi
            addend = ctx.inst_field(field)
            rules = {} if int(inst.src2.offset) >= 256 else {"addend": Addend(where, mark, ctx.rsgpr_dyn(addend))}
            with ctx.by(**rules):
                compiled = original(inst, ctx)
            # What was compiled serves other registers, or other constants: not both.
            ctx.dyn_fields = [(field.lo, field.hi - 1) if each == where else each for each in ctx.dyn_fields]
            return compiled

        return compile_product

    wrap(emu, "_compile_wmma", around)


def mend_float8(emu, pcode, target):
    """Two numbers of 8 bits become two registers, from either half of one; gfx942 has formats of its own; in others, subnormal
    numbers are not zero."""

    def around(original):
        def compile_vector(inst, ctx):
            found = re.match("V_CVT_PK_F32_(FP8|BF8)", emu._op_name(inst))
            if not found:
                return original(inst, ctx)
            decode = emu._FUNCS[f"{found.group(1).lower()}_to_f32"]
            kind, lane, mask = type(inst), ctx.range(), ctx.rexec()
            if hasattr(kind, "src0_sel"):
                raw = ctx.inst_field(kind.vsrc0)
                raw = ctx.rsgpr_dyn(raw) if inst.s0 else ctx.rvgpr_dyn(raw, lane)
                two = emu._sdwa_select(raw, ctx.inst_field(kind.src0_sel), ctx.inst_field(kind.src0_sext))
            else:
                two = ctx.rsrc_dyn(ctx.inst_field(kind.src0), lane)
                two = emu._hi16(two) if emu._iattr(inst, "opsel") & 1 else two
            numbers = [emu._val_to_u32(decode(two)), emu._val_to_u32(decode(two >> emu._c(8)))]
            to = ctx.inst_field(kind.vdst)
            stores = [ctx.wvgpr_dyn(to + emu._c(i), lane, number, mask) for i, number in enumerate(numbers)]
            return emu.UOp.sink(emu.UOp.group(*stores).end(lane), *ctx.inc_pc())

        return compile_vector

    for name in ("_compile_vop12", "_compile_vop3", "_compile_sdwa"):
        wrap(emu, name, around)
    if target == "gfx942":
        for name, mantissa, bias in (("fp8", 3, 8), ("bf8", 2, 16)):
            emu._FUNCS[f"{name}_to_f32"] = lambda bits, m=mantissa, b=bias: decode_fnuz(emu, bits, m, b)
            emu._FUNCS[f"f32_to_{name}"] = lambda number, m=mantissa, b=bias: encode_fnuz(emu, number, m, b)
    else:
        for name, mantissa, bias in (("fp8", 3, 7), ("bf8", 2, 15)):
            flushing = emu._FUNCS[f"f32_to_{name}"]
            emu._FUNCS[f"f32_to_{name}"] = lambda number, f=flushing, m=mantissa, b=bias: encode_small(emu, number, f, m, b)


def decode_fnuz(emu, bits, mantissa_bits, bias):
    """A number of 8 bits without infinities; the pattern of a negative zero is NaN."""
    u32, f32 = emu.dtypes.uint32, emu.dtypes.float32
    bits = bits.cast(u32) & emu._c(0xFF)
    sign = (bits >> emu._c(7)) << emu._c(31)
    exponent = (bits & emu._c(0x7F)) >> emu._c(mantissa_bits)
    mantissa = bits & emu._c((1 << mantissa_bits) - 1)
    normal = ((exponent + emu._c(127 - bias)) << emu._c(23)) | (mantissa << emu._c(23 - mantissa_bits))
    unit = emu.UOp.const(2.0 ** (1 - bias - mantissa_bits), f32)
    subnormal = (mantissa.cast(f32) * unit).bitcast(u32)
    value = exponent.eq(emu._c(0)).where(subnormal, normal) | sign
    return bits.eq(emu._c(0x80)).where(emu._c(0x7FC00000), value).bitcast(f32)


def encode_small(emu, number, encode, mantissa_bits, bias):
    """Rounds what is below the normal numbers to nearest, ties to even; `encode` has the rest."""
    u32 = emu.dtypes.uint32
    bits = number if number.dtype == u32 else number.bitcast(u32)
    is_small, subnormal = round_small(emu, bits & emu._c(0x7FFFFFFF), mantissa_bits, bias)
    small = subnormal | ((bits >> emu._c(24)) & emu._c(0x80))
    return is_small.where(small, encode(number).cast(u32) & emu._c(0xFF)).cast(emu.dtypes.uint8)


def round_small(emu, magnitude, mantissa_bits, bias):
    """Whether it is below the normal numbers, and what it is rounded to then."""
    u32, f32 = emu.dtypes.uint32, emu.dtypes.float32
    # Adding a number whose last place is the unit of subnormal numbers rounds to it.
    large = emu.UOp.const(2.0 ** (23 + 1 - bias - mantissa_bits), f32)
    return magnitude < emu._c((128 - bias) << 23), (magnitude.bitcast(f32) + large).bitcast(u32) - large.bitcast(u32)


def encode_fnuz(emu, number, mantissa_bits, bias):
    """Rounds to nearest, ties to even. What is too large is NaN."""
    u32 = emu.dtypes.uint32
    bits = number if number.dtype == u32 else number.bitcast(u32)
    magnitude = bits & emu._c(0x7FFFFFFF)
    shift = 23 - mantissa_bits
    odd = (magnitude >> emu._c(shift)) & emu._c(1)
    rounded = (magnitude + emu._c((1 << (shift - 1)) - 1) + odd) >> emu._c(shift)
    normal = rounded - emu._c((127 - bias) << mantissa_bits)
    is_small, subnormal = round_small(emu, magnitude, mantissa_bits, bias)
    value = is_small.where(subnormal, normal)
    signed = value.eq(emu._c(0)).where(value, value | ((bits >> emu._c(24)) & emu._c(0x80)))
    return (value > emu._c(0x7F)).where(emu._c(0x80), signed).cast(emu.dtypes.uint8)


# By family: bits of the first word that name an instruction, and what it becomes. Words of 0xBF800000 do nothing: there are no
# caches to invalidate.
NOTHING = 0xBF800000
MISSING = {
    "gfx90a": [(0xFFFF0000, 0xD3E70000, 0xD3E10000, 0)],  # its number of v_mfma_f32_16x16x16bf16_1k is not CDNA 3's
    "gfx11": [(0xFFFFFFFF, 0xE0AC0000, NOTHING, 2)],  # buffer_gl0_inv
    "gfx12": [(0xFFFFFF80, 0xEE0AC000, NOTHING, 3)],  # global_inv
}


def mend_missing(emu, target):
    renamed = [each for prefix, all_of in MISSING.items() if target.startswith(prefix) for each in all_of]
    decode = emu._decode_at

    def decode_renamed(address, family):
        words = (ctypes.c_uint32 * 3).from_address(address)
        for mask, name, new, nothings in renamed:
            if words[0] & mask == name:
                words[0] = new | (words[0] & ~mask & 0xFFFFFFFF if not nothings else 0)
                words[1:nothings] = [NOTHING] * max(nothings - 1, 0)
        return decode(address, family)

    emu._decode_at = decode_renamed
