"""Mutants: small changes of C++ headers, and headers with many of them, of which a variable of the environment picks one.

The headers are of one style: spaces around binary operators, none before the brackets of template arguments.
"""
import collections
import re

REPLACEMENTS = [
    (r" == ", " != "), (r" != ", " == "), (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "),
    (r" \+ ", " - "), (r" - ", " + "), (r" && ", " || "), (r" \|\| ", " && "), (r"\b0\b", "1"), (r"\b1\b", "2"),
    (r"\btrue\b", "false"), (r"\bfalse\b", "true"), (r" \+= ", " -= "), (r" -= ", " += "), (r"\+\+", "--"), (r"--", "++"),
    (r"std::min(?=\()", "std::max"), (r"std::max(?=\()", "std::min"),
]
CONDITION = re.compile(r"\bif \((?!constexpr)(?:[^;]*; )?(.*)\) \{$")
STATEMENT = re.compile(r"^\s+(?!return|const|auto|using|static|template|break|continue|case|typename)[\w:.>\-\[\]()]+.*[\w)\]]\(?.*\);$")
SKIPPED = re.compile(r"^\s*(//|#|static_assert|template|using|assert|requires|\[\[nodiscard\]\] friend)")
DECLARATION = re.compile(r"^\s*[\w:]+(<.*>)?[&*]* \w+[({]")
PREFETCH = re.compile(r"^\s*[\w:.>\-]*prefetch\w*\(")
TEXT = re.compile(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|(?<!\w)'(?:[^'\\\n]|\\.)+'")

# A mutant is a range of a header's text, and what it is replaced by.
Mutant = collections.namedtuple("Mutant", "header number start end new")

RUNTIME = r"""#pragma once
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <type_traits>
#include <fcntl.h>
#include <unistd.h>

namespace pagedkv_mutants {

inline const int chosen = std::getenv("PAGEDKV_MUTANT") != nullptr ? std::atoi(std::getenv("PAGEDKV_MUTANT")) : -1;

inline void reach() noexcept {
  static std::atomic<bool> reached{false};
  const auto* const path = std::getenv("PAGEDKV_REACHED");
  if (path != nullptr && !reached.exchange(true, std::memory_order_relaxed)) {
    const auto error = errno;
    ::close(::open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    errno = error;
  }
}

template <int Number>
[[gnu::always_inline]] constexpr bool is_chosen() noexcept {
  if (std::is_constant_evaluated() || chosen != Number) {
    return false;
  }
  reach();
  return true;
}

}  // namespace pagedkv_mutants
"""


def without_text(text):
    """The same length, with neither comments nor characters of literals."""
    return TEXT.sub(lambda match: "_" * len(match.group()) if match.group()[0] != "/" else " " * len(match.group()), text)


def mutants_of(header, text):
    """Those of a header. Statements that are dropped are whole lines."""
    code = without_text(text)
    begin = 0
    for number, line in enumerate(code.splitlines()):
        if not SKIPPED.match(line):
            for pattern, new in REPLACEMENTS:
                for match in re.finditer(pattern, line):
                    yield Mutant(header, number, begin + match.start(), begin + match.end(), new)
            line = line.rstrip()
            if condition := CONDITION.search(line):
                start, end = condition.span(1)
                yield Mutant(header, number, begin + start, begin + end, f"!({text[begin + start:begin + end]})")
            if STATEMENT.match(line) and code[:begin].rstrip()[-1:] in tuple(";{}:"):
                indent = len(line) - len(line.lstrip())
                yield Mutant(header, number, begin + indent, begin + len(line), "")
        begin += len(text.splitlines(keepends=True)[number])


def only_prefetches(text, mutant):
    """Whether it is in a call that only asks for a cache line, which no result depends on."""
    return PREFETCH.match(text.splitlines()[mutant.number]) is not None


def mutated(text, mutant):
    return text[:mutant.start] + mutant.new + text[mutant.end:]


def begin_of_expression(code, at):
    depth = 0
    while at > 0:
        c, before = code[at - 1], code[at - 2:at - 1]
        if c in ")]}" or (c == ">" and before not in (" ", "-", "=")):
            depth += 1
        elif c in "([{" or (c == "<" and before != " " and before != "<"):
            depth -= 1
        is_assignment = c == "=" and before in " +-*/%&|^" and code[at:at + 1] != "="
        if depth < 0 or depth == 0 and (c in ";,?" or is_assignment or (c == ":" and before == " ") or re.search(r"\breturn$", code[at - 6:at])):
            break
        at -= 1
    return at + len(code[at:]) - len(code[at:].lstrip())


def end_of_expression(code, at, is_assigned):
    """`is_assigned`: what is to the right of an assignment, which has all of a choice between two values."""
    depth = 0
    while at < len(code):
        c, before = code[at], code[at - 1]
        if c in "([{" or (c == "<" and before != " " and before != "<"):
            depth += 1
        elif c in ")]}" or (c == ">" and before not in (" ", "-", "=")):
            depth -= 1
        if depth < 0 or depth == 0 and (c in ";," or not is_assigned and (c == "?" or (c == ":" and before == " "))):
            break
        at += 1
    return len(code[:at].rstrip())


Switch = collections.namedtuple("Switch", "start end form")


def switch_of(text, mutant, number):
    """What chooses between a range of the text and the mutant's, or None."""
    code = without_text(text)
    chosen = f"::pagedkv_mutants::is_chosen<{number}>()"
    start, end = mutant.start, mutant.end
    if mutant.new == "":
        return None if DECLARATION.match(text[start:end]) else Switch(start, end, f"if (!{chosen}) {{ %s }}")
    line = code.splitlines()[mutant.number]
    if re.search(r"\b(concept|requires|if constexpr|constexpr auto|static constexpr)\b", line):
        return None
    if mutant.new.startswith("!("):
        return Switch(start, end, f"{chosen} != static_cast<bool>(%s)")
    begin, stop = begin_of_expression(code, start), end_of_expression(code, end, mutant.new in (" += ", " -= "))
    other = text[begin:start] + mutant.new + text[end:stop]
    if begin >= stop or "//" in other or "\n#" in other:
        return None
    return Switch(begin, stop, f"({chosen} ? ({other.replace('%', '%%')}) : (%s))")


def with_switches(text, switches, begin=0, end=None):
    """The text with all of these, of which each two have ranges apart, or one within the other's."""
    end = len(text) if end is None else end
    made, at = "", begin
    rest = sorted(switches, key=lambda each: (each.start, -each.end))
    while rest:
        first, *rest = rest
        within = [each for each in rest if each.start < first.end]
        rest = [each for each in rest if each.start >= first.end]
        made += text[at:first.start] + first.form % with_switches(text, within, first.start, first.end)
        at = first.end
    return made + text[at:end]


def crosses(one, other):
    """Whether ranges overlap, and neither holds the other."""
    first, second = sorted((one, other), key=lambda each: (each.start, -each.end))
    return second.start < first.end < second.end
