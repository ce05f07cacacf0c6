"""Lists the public symbols of the main headers that have no comment, from Doxygen's XML: check_reference.py XML INCLUDE.

A comment covers the declarations below it up to the next empty line, and all overloads of a name. The members of a policy that its
concept's table of requirements names are described there, and those of an axis in policy/axis.hpp. Operators, constructors and
destructors need none.
"""

import collections
import fnmatch
import pathlib
import re
import sys
import xml.etree.ElementTree

# The headers that users of the library include; those of policies stand for their concepts.
MAIN_HEADERS = """
pagedkv.hpp version.h fwd.hpp c/pagedkv.h core/*.hpp cache/kv_cache.hpp cache/outcomes.hpp
requests/request_tracker.hpp requests/request.hpp requests/tracker_config.hpp requests/tracker_result.hpp requests/metrics.hpp
sequence/batch_view.hpp sequence/sequence.hpp storage/view.hpp storage/sizing.hpp storage/presets.hpp storage/memory_plan.hpp
metrics/*.hpp attention/attention.hpp attention/plan.hpp events/*.hpp router/*.hpp policy/*/concept.hpp policy/axis.hpp
host/backend.hpp host/attend.hpp host/thread_pool.hpp host/workers.hpp host/instruction_set.hpp
device/backend.hpp device/device.hpp device/stream.hpp device/event.hpp device/peer.hpp device/*allocator.hpp device/shared_memory.hpp
wire/event_*.hpp wire/batch.hpp wire/apply.hpp
tier/tiered_cache.hpp tier/tier_config.hpp tier/file_tier.hpp tier/remote_tier.hpp
tier/redis_client.hpp tier/redis_config.hpp tier/session_file.hpp tier/hand_over.hpp tier/tier_statistics.hpp
""".split()

Symbol = collections.namedtuple("Symbol", "line kind scope name documented")


def text_of(element):
    return "" if element is None else "".join(element.itertext()).strip()


def is_documented(element):
    return any(text_of(element.find(name)) for name in ("briefdescription", "detaileddescription"))


def symbols_of(folder):
    """The public symbols of each header, by its name."""
    found = collections.defaultdict(dict)

    def add(place, element, kind, scope, name):
        if place is not None:
            symbol = Symbol(int(place.get("line")), kind, scope, name, is_documented(element))
            found[place.get("file").removeprefix("pagedkv/")][element.get("id")] = symbol

    compounds = [each for path in sorted(folder.glob("*.xml")) for each in xml.etree.ElementTree.parse(path).getroot().findall("compounddef")]
    private = {inner.get("refid") for each in compounds for inner in each.findall("innerclass") if inner.get("prot") != "public"}
    for compound in compounds:
        identifier, scope = compound.get("id"), text_of(compound.find("compoundname"))
        # A class is private also where one around it is.
        if compound.get("kind") in ("dir", "page") or any(f"{identifier}_1_1".startswith(f"{each}_1_1") for each in private):
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


def undocumented(symbols, lines, described, modelling):
    """Those of one header's symbols that no comment describes."""
    commented = {(symbol.scope, symbol.name) for symbol in symbols if symbol.documented}
    before = None
    for symbol in sorted(symbols):
        own = symbol.scope.rpartition("::")[2].partition("<")[0]
        name = symbol.name.partition("<")[0].strip()
        covered = symbol.documented or (symbol.scope, name) in commented
        if not covered and before and before[1]:
            covered = not any(not line.strip() for line in lines[before[0] : symbol.line - 1])
        needless = re.match(r"operator\b", name) or name.lstrip("~") == own or re.search(r"_axis\b", f"{symbol.scope}::{name}")
        required = name in described and own.removeprefix("basic_") in modelling
        before = symbol.line, covered
        if not (covered or needless or required):
            yield symbol


def main():
    folder, include = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    described, modelling = requirements(include), models(include)
    count = missing = 0
    for header, symbols in sorted(symbols_of(folder).items()):
        if not any(fnmatch.fnmatch(header, pattern) for pattern in MAIN_HEADERS):
            continue
        lines = (include / "pagedkv" / header).read_text().splitlines()
        count += len(symbols)
        for symbol in undocumented(symbols.values(), lines, described, modelling):
            missing += 1
            print(f"{header}:{symbol.line}: {symbol.kind} {symbol.scope}::{symbol.name} has no comment")
    print(f"{count} public symbols in the main headers, {missing} without a comment")
    return 0 if count and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
