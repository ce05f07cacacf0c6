"""Checks the comments of the headers that users include, from Doxygen's XML: check_reference.py XML INCLUDE [PATTERN…]. Patterns
name headers that none includes, instead of those below. Headers of kernels/, beside INCLUDE, are those that docs/Doxyfile names: names of a
platform have their comments in the host executor's.

Each public symbol has a comment. That of a function that returns a `result` has a sentence `Errors: …`, `Errors of …` or `Errors, …`, with codes
or with the operations that have the same ones. That of an operation that engines call in each step names its cost: `Constant time`,
`Linear in …` or `O(…)`; or its class says of all operations that they take constant time. Of free functions, those that return a `result`
are such operations. A comment that begins with `Does what … does` or `Does the same as …` leaves both to the other operation, which exists.

The comment of a member that is a number names its unit, bytes, tokens or a share, where the name does not, as `num_blocks` does; or a
member that exists, `as window`. So does one that covers it and says `in bytes`, `count numbers` and the like. Ids, indices, hashes and
kinds have none. The comment of an array, a span or a pointer to numbers, gives its shape in brackets, `[row][head]`, or that of another
member, `as cache_config::scales`.

A parameter that is a number has a unit in its name, or the comment of its function names it or a unit. The comment names each span, or its
elements, or gives a shape in brackets; where the function writes into it, the comment also says how much: it fills it, as far as there is
room, one for each. It names a pointer to numbers, or gives its shape; in C, where comments are those of the C++ operations, a count follows.
The comment of a function that returns a span, or that of its class, gives a shape or says of what there is one for each.

The check sees neither whether a comment that names a parameter says enough of it, nor whether a unit or shape in it is that parameter's, nor
whether errors and costs are right and complete; nor does it see parameters of constructors, of types that are templates' own, and of members
in a table, nor the platforms of devices.

A comment covers the declarations below it up to the next empty line, and all overloads of a name. The members of a policy that its
concept's table of requirements names are described there, but for errors and cost, and those of an axis in policy/axis.hpp. Operators,
constructors and destructors need none.
"""

import collections
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree

# The library's own headers: no page, no example and no program of a user's names them. Doxygen leaves out others.
OWN_HEADERS = """
pool/*.hpp prefix/*.hpp executor/[!il]*.hpp storage/*_storage.hpp storage/layout.hpp
cache/cache_state.hpp cache/index_model.hpp cache/record_map.hpp
sequence/*_table.hpp attention/plan_layout.hpp attention/rows.hpp
attention/shared_prefixes.hpp device/memory_ledger.hpp device/checks.hpp host/slots.hpp host/rows_in_pieces.hpp sequence/batch_rows.hpp storage/packed_parts.hpp
requests/preemption.hpp requests/batch_repetition.hpp requests/sequence_releases.hpp requests/records.hpp
tier/block_records.hpp tier/group_records.hpp tier/record*.hpp tier/sequence_loads.hpp tier/slower_tier.hpp
tier/transfer_queue.hpp
""".split()

# What kernels on the host run on, also in headers of kernels.
OWN_NAMESPACE = "pagedkv::executor"

# Classes whose operations engines call in each step, and namespaces of such functions: docs/integrate.md and docs/attention.md.
IN_EACH_STEP = {f"pagedkv::{name}" for name in """
basic_kv_cache basic_tiered_cache request_tracker padded_batch compressed_batch attention_planner block_storage_view
host_backend hip_backend copy_list hip::stream hip::event hip::device_scope
""".split()}
NAMESPACES_IN_EACH_STEP = {"pagedkv::host", "pagedkv::hip"}

RETURNS_RESULT = re.compile(r"\b(?:tracker_)?result\s*<")
NAMES_ERRORS = re.compile(r"\bErrors(?:[:,]| of\b)")
NAMES_COST = re.compile(r"\b(?:[Cc]onstant time|[Ll]inear in)\b|\bO\(")
COVERS_COST = re.compile(r"\btake constant time\b")
NAMES_ANOTHER = re.compile(r"\bDoes (?:what .* does|the same as)\b")
OTHER = re.compile(r"\bDoes what ([\w:]+) does\b")

# Numbers, and names of theirs that need no unit: counts, ids, hashes, places in an order, and kinds. Those of type `timestamp` are nanoseconds.
NUMBER = re.compile(r"(?:constexpr |const |static )*(?:std::)?(?:u?int\d+_t|size_t|int|float|double)(?: &)?")
NEEDS_NO_UNIT = re.compile(
    r"^(?:max_)?num_|^(?:token|head)$|^exponent|_log2$|(?:^|_)(?:id|index|entry|position|arrival|depth|slot|group|layer|block|source|destination|"
    r"origin|kind|code|priority|hash|identity|salt|seed|device|port|database|descriptor)$|^padding|^struct_size$"
)
HAS_NO_UNIT = re.compile(r"\b(?:true|false):|\bPAGEDKV_[A-Z]|\bids? of\b")  # choices in C, where neither is a type
UNIT = (
    r"(?:bytes|[KM]iB|(?:nano|micro|milli)?seconds|percent|thousandths|share|factor|scores|units?|tokens|blocks|slots|elements|numbers|floats|"
    r"bits|scales|entries|rows|heads|layers|waves|shares|workgroups|columns|partials|parts|pieces|places|records|requests|events|keys|sequences|"
    r"lanes|transfers|prompts|failures)"
)
NAMES_UNIT = re.compile(rf"\b{UNIT}\b", re.IGNORECASE)
HAS_UNIT = re.compile(rf"(?:^|_){UNIT}(?:_|$)")
COVERS_UNITS = re.compile(rf"\b(?:in|counts?) (?:its |\d+ )?{UNIT}\b|^{UNIT}\b", re.IGNORECASE)
NAMES_MEMBER = re.compile(r"\bas (?:in )?([\w:]+)")

# Arrays, whose shape engines have to know.
ARRAY = re.compile(r"\bspan\s*<(?!\s*(?:const )?std::byte)|\b(?:u?int\d+_t|float|double) \*(?!\s*(?:const)?\s*\*)")
NAMES_SHAPE = re.compile(r"\[(?!any\b)[^\]]+\]")

# Parameters. These numbers are what their name says, in tokens, bytes and numbers as everywhere; others need a word.
KNOWN_NUMBER = re.compile(
    r"(?:^|_)(?:key|parent|previous|alignment|size|dim|head|device|peer|room|offset|number|absmax|scale|i|n|a|b|each|most|mask|delta|width)$"
)
SPAN = re.compile(r"\bspan\s*<\s*(const )?\s*(?!const|std::byte)((?:[\w]+::)*\w+)")
POINTER = re.compile(r"^(?:const )?(?:std::)?(?:u?int\d+_t|size_t|int|float|double) ?\*$")
NAMES_ROOM = re.compile(r"\b(?:[Ff]ills?|room|as many|at most|each|too (?:short|small)|all)\b")

Symbol = collections.namedtuple("Symbol", "line kind scope name comment type parameters")


def text_of(element):
    return "" if element is None else "".join(element.itertext()).strip()


def comment_of(element):
    text = " ".join(text_of(element.find(name)) for name in ("briefdescription", "detaileddescription")).strip()
    return re.sub(r"^[^.]*-{9,}[.\s]*", "", text)  # a heading of the C header


def symbols_of(folder):
    """The public symbols of each header, by its name."""
    found = collections.defaultdict(dict)

    def add(place, element, kind, scope, name):
        if place is not None:
            parameters = tuple((text_of(each.find("type")), text_of(each.find("declname"))) for each in element.findall("param"))
            symbol = Symbol(int(place.get("line")), kind, scope, name, comment_of(element), text_of(element.find("type")), parameters)
            found[place.get("file").removeprefix("pagedkv/")][element.get("id")] = symbol

    compounds = [each for path in sorted(folder.glob("*.xml")) for each in xml.etree.ElementTree.parse(path).getroot().findall("compounddef")]
    private = {inner.get("refid") for each in compounds for inner in each.findall("innerclass") if inner.get("prot") != "public"}
    for compound in compounds:
        identifier, scope = compound.get("id"), text_of(compound.find("compoundname"))
        # A class is private also where one around it is.
        own = f"{scope}::".startswith(f"{OWN_NAMESPACE}::")
        if own or compound.get("kind") in ("dir", "page") or any(f"{identifier}_1_1".startswith(f"{each}_1_1") for each in private):
            continue
        if compound.get("kind") in ("struct", "class", "union", "concept"):
            outer, _, name = scope.rpartition("::")
            add(compound.find("location"), compound, compound.get("kind"), outer, name)
        for member in compound.iter("memberdef"):
            if member.get("prot") == "public" and member.get("kind") != "friend":
                place, name = member.find("location"), text_of(member.find("name"))
                add(place, member, member.get("kind"), scope, name)
                for value in member.findall("enumvalue"):
                    add(place, value, "value", name, text_of(value.find("name")))
    return found


def requirements(include):
    """Names that the tables of requirements describe."""
    names = set()
    for path in include.rglob("*.hpp"):
        for cell in re.findall(r"^/// \| `(.*?)\s+\|", path.read_text(), flags=re.MULTILINE):
            names.update(re.findall(r"(?:\.|::)(?:template )?(\w+)", cell))
    return names


def models(include):
    """Names of types that are asserted to model a concept, without the `basic_` of a template."""
    asserted = re.compile(r"static_assert\(\w+<(?:\w+::)*(?:basic_)?(\w+)")
    return {name for path in include.rglob("*.hpp") for name in asserted.findall(path.read_text())}


def lacks_of_member(symbol, own, covering, names):
    """What the comments of a member variable lack, if anything: its own, and those that cover it, of its class and above a group."""
    around = symbol.scope.rpartition("::")[2].partition("<")[0]
    as_another = any(names & {name, f"{around}::{name}"} for name in NAMES_MEMBER.findall(own))
    if NUMBER.fullmatch(symbol.type) and not as_another and not NEEDS_NO_UNIT.search(symbol.name) and not HAS_UNIT.search(symbol.name):
        if not NAMES_UNIT.search(own) and not HAS_NO_UNIT.search(own) and not any(map(COVERS_UNITS.search, covering)):
            yield symbol, "does not name its unit"
    counted = symbol.type.endswith("*") and names & {f"{around}::num_{symbol.name}", f"{around}::room_for_{symbol.name}"}  # in C
    if (counted or ARRAY.search(symbol.type)) and not as_another and not any(map(NAMES_SHAPE.search, [own, *covering])):
        yield symbol, "does not give its shape"


def lacks_of_function(symbol, comment, around, known):
    """What the comment of a function that returns a `result`, or that engines call in each step, lacks. `around`: that of its class."""
    if NAMES_ANOTHER.search(comment):
        if any(name.rpartition("::")[2] not in known for name in OTHER.findall(comment)):
            yield symbol, "does what a function does that there is not"
        return
    fails = RETURNS_RESULT.search(symbol.type)
    if fails and not NAMES_ERRORS.search(comment):
        yield symbol, "does not name its errors"
    in_each_step = symbol.scope in IN_EACH_STEP or fails and symbol.scope in NAMESPACES_IN_EACH_STEP
    if in_each_step and not NAMES_COST.search(comment) and not COVERS_COST.search(around):
        yield symbol, "does not name its cost"


def words_of(name):
    """A pattern of the words of a name, in the singular or plural."""
    stems = [re.sub(r"s$", "", re.sub(r"(?:ies|y)$", "(?:y|ie)", word)) for word in name.split("_") if word not in ("id", "t", "all", "out")]
    return re.compile("|".join(rf"\b{stem}s?\b" for stem in [*stems, re.escape(name)] if stem), re.IGNORECASE)


def lacks_of_parameters(symbol, comment, around, is_c):
    """What the comment of a function lacks of its parameters and of a span that it returns."""
    if NAMES_ANOTHER.search(comment):
        return
    has_shape = NAMES_SHAPE.search(comment)
    for position, (kind, name) in enumerate(symbol.parameters):
        if not name:
            continue
        span = SPAN.search(kind)
        named = re.search(rf"\b{name}\b", comment)
        if span and not has_shape:
            if not any(words_of(each).search(comment) for each in (name, span[2].rpartition("::")[2])):
                yield symbol, f"does not name {name}"
            elif not span[1] and not NAMES_ROOM.search(comment):
                yield symbol, f"does not say how much of {name} it writes"
        elif POINTER.match(kind) and is_c and kind.startswith("const"):
            if not re.match(r"num_|room|size", (*symbol.parameters, ("", ""))[position + 1][1]):
                yield symbol, f"has no count behind {name}"
        elif POINTER.match(kind) and not is_c and not words_of(name).search(comment) and not has_shape:
            yield symbol, f"does not name {name}"
        elif NUMBER.fullmatch(kind) and not is_c and not named and not NAMES_UNIT.search(comment):
            if not any(each.search(name) for each in (NEEDS_NO_UNIT, HAS_UNIT, KNOWN_NUMBER)):
                yield symbol, f"names neither {name} nor its unit"
    span = SPAN.search(symbol.type)
    if span and not any(NAMES_SHAPE.search(text) or re.search(r"\beach\b", text) for text in (comment, around)):
        if NUMBER.fullmatch(span[2]) or not words_of(span[2].rpartition("::")[2]).search(comment):
            yield symbol, "does not give the shape of what it returns"


def faults(symbols, lines, described, modelling, names, is_c):
    """Those of one header's symbols whose comment lacks something, each with what it lacks."""
    comments = collections.defaultdict(str)
    for symbol in symbols:
        comments[symbol.scope, symbol.name] += f"{symbol.comment}\n" if symbol.comment else ""
    known = {name.rpartition("::")[2] for name in names}
    before = None
    for symbol in sorted(symbols):
        outer, _, around = symbol.scope.rpartition("::")
        own = around.partition("<")[0]
        name = symbol.name.partition("<")[0].strip()
        comment = comments[symbol.scope, symbol.name] or comments.get((symbol.scope, name), "")
        if not comment and before and not any(not line.strip() for line in lines[before[0] : symbol.line - 1]):
            comment = before[1]
        before = symbol.line, comment
        in_table = name in described and own.removeprefix("basic_") in modelling and (outer, around) in comments
        if symbol.kind == "variable" and comment and not in_table:
            itself = comments.get((symbol.scope, symbol.name), "")
            yield from lacks_of_member(symbol, itself, [comments.get((outer, around), ""), "" if itself else comment], names)
        needless = re.match(r"operator\b", name) or name.lstrip("~") == own or re.search(r"_axis\b", f"{symbol.scope}::{name}")
        if needless or symbol.kind not in ("function", "variable") and comment:
            continue
        if not comment and not in_table:
            yield symbol, "has no comment"
        elif symbol.kind == "function":
            yield from lacks_of_function(symbol, comment, comments.get((outer, around), ""), known)
            if not in_table:
                yield from lacks_of_parameters(symbol, comment, comments.get((outer, around), ""), is_c)


def main():
    folder, include = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    patterns = sys.argv[3:] or OWN_HEADERS
    described, modelling = requirements(include), models(include)
    known = symbols_of(folder)
    names = {"::".join(f"{symbol.scope}::{symbol.name}".split("::")[-2:]) for symbols in known.values() for symbol in symbols.values()}
    headers = sorted(header for header in known if not any(fnmatch.fnmatch(header, pattern) for pattern in patterns))
    found = [f"the pattern {pattern} matches no header" for pattern in patterns if not fnmatch.filter(known, pattern)]
    for header in headers:
        root = include if (include / "pagedkv" / header).exists() else include.parent / "kernels"
        lines = (root / "pagedkv" / header).read_text().splitlines()
        for symbol, fault in faults(known[header].values(), lines, described, modelling, names, header.endswith(".h")):
            found.append(f"{header}:{symbol.line}: {symbol.kind} {symbol.scope}::{symbol.name} {fault}")
    print(*found, sep="\n", end="\n" if found else "")
    count = sum(len(known[header]) for header in headers)
    print(f"{count} public symbols in {len(headers)} headers, {len(found)} faults")
    return 0 if count and not found else 1


if __name__ == "__main__":
    sys.exit(main())
