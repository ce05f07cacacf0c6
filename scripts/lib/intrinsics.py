"""Gives intrinsics of LLVM's textual code plain definitions, for tools that know few of them: intrinsics.py FILE."""

import itertools
import pathlib
import re
import sys

COMPARISONS = {"umin": "ult", "umax": "ugt", "smin": "slt", "smax": "sgt"}


def chosen(name, kind, predicate):
    return f"""define internal {kind} @{name}({kind} %a, {kind} %b) {{
  %c = icmp {predicate} {kind} %a, %b
  %r = select i1 %c, {kind} %a, {kind} %b
  ret {kind} %r
}}"""


def absolute(name, kind):
    return f"""define internal {kind} @{name}({kind} %a, i1 %poison) {{
  %c = icmp slt {kind} %a, 0
  %n = sub {kind} 0, %a
  %r = select i1 %c, {kind} %n, {kind} %a
  ret {kind} %r
}}"""


def product(name, kind):
    """For products that do not overflow: sizes of arrays."""
    return f"""define internal {{ {kind}, i1 }} @{name}({kind} %a, {kind} %b) {{
  %p = mul {kind} %a, %b
  %f = insertvalue {{ {kind}, i1 }} undef, i1 false, 1
  %r = insertvalue {{ {kind}, i1 }} %f, {kind} %p, 0
  ret {{ {kind}, i1 }} %r
}}"""


def rotated(name, kind, to_left):
    """The upper or the lower half of two numbers in a row that are moved by a count."""
    bits = int(kind[1:])
    high, low = ("shl", "lshr") if to_left else ("lshr", "shl")
    first, second = ("%a", "%b") if to_left else ("%b", "%a")
    return f"""define internal {kind} @{name}({kind} %a, {kind} %b, {kind} %n) {{
  %m = urem {kind} %n, {bits}
  %z = icmp eq {kind} %m, 0
  %k = sub {kind} {bits}, %m
  %k1 = select i1 %z, {kind} 1, {kind} %k
  %x = {high} {kind} {first}, %m
  %y = {low} {kind} {second}, %k1
  %o = or {kind} %x, %y
  %r = select i1 %z, {kind} {first}, {kind} %o
  ret {kind} %r
}}"""


def definition(intrinsic, name):
    """A function that does the same; None for what needs none."""
    operation, _, kind = intrinsic.rpartition(".")
    if operation in COMPARISONS:
        return chosen(name, kind, COMPARISONS[operation])
    if operation == "abs":
        return absolute(name, kind)
    if operation == "umul.with.overflow":
        return product(name, kind)
    if operation in ("fshl", "fshr"):
        return rotated(name, kind, operation == "fshl")
    if intrinsic == "x86.sse2.pause":
        return f"define internal void @{name}() {{\n  ret void\n}}"
    if intrinsic.startswith("prefetch"):
        return f"define internal void @{name}(ptr %a, i32 %b, i32 %c, i32 %d) {{\n  ret void\n}}"
    return None


CLEARED = re.compile(r"^\s*(?:tail )?call void @llvm\.memset\.p0\.i64\(ptr ([^,]*?)(%[\w.]+|@[\w.]+), i8 0, i64 (\d+|%[\w.]+), .*$", re.MULTILINE)


def cleared(found, number):
    """Stores of 0 as wide as the memory is aligned, which are those of its members where they are alike."""
    attributes, pointer, size = found.groups()
    aligned = re.search(r"align (\d+)", attributes)
    width = min(int(aligned.group(1)) if aligned else 1, 8)
    if not size.isdigit():
        return f"  call void @cleared.{8 * width}(ptr {pointer}, i64 {size})"
    lines, at, size = [], 0, int(size)
    while at < size:
        width = width if size - at >= width else 1
        place = f"%cleared.{number}.{at}"
        lines.append(f"  {place} = getelementptr i8, ptr {pointer}, i64 {at}")
        lines.append(f"  store i{8 * width} 0, ptr {place}")
        at += width
    return "\n".join(lines)


def clearing(bits):
    """Such stores for a size that is known when the program runs: of a multiple of their width."""
    return f"""define internal void @cleared.{bits}(ptr %a, i64 %n) {{
entry:
  br label %check
check:
  %at = phi i64 [ 0, %entry ], [ %next, %store ]
  %left = icmp ult i64 %at, %n
  br i1 %left, label %store, label %done
store:
  %place = getelementptr i8, ptr %a, i64 %at
  store i{bits} 0, ptr %place
  %next = add i64 %at, {bits // 8}
  br label %check
done:
  ret void
}}"""


# Objects of libraries, such as tables of virtual functions, of which no scene uses any contents.
OUTSIDE = re.compile(r"^(@[^=\n]+?) = external (?:dso_local )?(?:local_)?(?:unnamed_addr )?((?:thread_local )?(?:global|constant)) ([^,\n]+)(.*)$", re.MULTILINE)


def lower(text):
    text = OUTSIDE.sub(r"\1 = \2 \3 zeroinitializer\4", text)
    numbers = itertools.count()
    text = CLEARED.sub(lambda found: cleared(found, next(numbers)), text)
    defined = [clearing(bits) for bits in (8, 16, 32, 64) if f"@cleared.{bits}(" in text]
    for intrinsic in sorted(set(re.findall(r"^declare .*@llvm\.([\w.]+)\(", text, flags=re.MULTILINE))):
        name = f"plain.{intrinsic}"
        plain = definition(intrinsic, name)
        if plain:
            text = re.sub(rf"^declare .*@llvm\.{re.escape(intrinsic)}\(.*\n", "", text, flags=re.MULTILINE)
            text = text.replace(f"@llvm.{intrinsic}(", f"@{name}(")
            defined.append(plain)
    return "\n".join([text, *defined, ""])


if __name__ == "__main__":
    path = pathlib.Path(sys.argv[1])
    path.write_text(lower(path.read_text()))
