"""The rules of the source tree's structure, as functions from a tree to the list of its violations."""

import re

# The parts that each part may include besides the standard library and itself.
ALLOWED = {
    "c": {"version.h"},
    "core": set(),
    "fwd.hpp": {"core"},
    "version.h": set(),
    "detail": {"core"},
    "policy": {"core", "detail"},
    "storage": {"core", "detail", "policy"},
    "attention": {"core", "detail", "storage"},
    "backend": {"core", "detail", "policy", "storage", "attention"},
    "host": {"core", "detail", "policy", "backend", "storage", "attention"},
    "kernels": {"core", "detail", "storage", "attention", "executor"},
    "executor": {"core", "detail"},
    "device": {"core", "detail", "policy", "backend", "storage", "attention", "kernels"},
    "metrics": {"core", "detail", "policy", "pool"},
    "events": {"core", "detail", "policy"},
    "pool": {"core", "detail", "policy"},
    "prefix": {"core", "detail", "policy"},
    "sequence": {"core", "detail", "storage"},
    "cache": {"core", "detail", "policy", "backend", "storage", "metrics", "pool", "prefix", "sequence"},
    "router": {"core", "detail", "policy"},
    "wire": {"core", "detail", "policy", "events", "router"},
    "tier": {"core", "detail", "policy", "backend", "storage", "metrics", "pool", "prefix", "sequence", "cache"},
    "requests": {"core", "detail", "policy", "metrics", "pool", "prefix", "sequence", "cache"},
}
UMBRELLA = "pagedkv.hpp"
MAY_SEE_DEVICE = {"kernels", "executor", "device"}
DEVICE_HEADER = re.compile(r"^(hip|cuda|rocm|nv)(/|[a-z_]*\.h)")
# The only headers that name a device's runtime and its compilers' extensions; all others use pagedkv's own names for them.
PLATFORM_HEADER = re.compile(
    r"(kernels/(runtime|platform|attributes)[a-z_]*|core/host_device|policy/element/(?:float8|parts/[a-z_0-9]+))\.hpp"
)
RUNTIME_NAME = re.compile(
    r"\b(?:(?:hip|cuda)[A-Z]\w*|__(?:global|device|host|shared|launch_bounds|forceinline)__|__shfl\w*|__syncthreads|__ballot|"
    r"__(?:float_as_int|int_as_float)|threadIdx|blockIdx|blockDim|gridDim|warpSize|dim3|atomic(?:Add|Max|Min|Exch|CAS))\b"
)
DEVICE_NAME = re.compile(r"\b(hip[A-Z]\w*|__HIP\w*|__CUDA\w*|__global__|hipcc)\b")
ROLES = "Element|Locking|Eviction|Allocator|Backend|Layout|Hash|Events|FreeList|Preemption"
DEFAULTED_ROLE = re.compile(rf"\b(?:{ROLES})\s*=\s*[\w:]")
# Cut short at the first brace; the name of a structure follows the second.
C_DECLARATION = re.compile(r"enum|typedef [\w ]+ pagedkv_\w+|pagedkv_\w+|[\w *]+[ *]pagedkv_\w+\(.*\)")
C_HEADER = re.compile(r"std(def|int)\.h")
# Libraries whose names users of a C++ library expect. (Of the C library and the compiler only these; none has a dot in C++.)
FOREIGN_HEADER = re.compile(
    r"([a-z_0-9]+|boost/.+|xxhash\.h|msgpuck\.h|zmq\.hpp|liburing\.h|hiredis/hiredis\.h|immintrin\.h|(sched|fcntl|poll|string|unistd)\.h|"
    r"netinet/(in|tcp)\.h|sys/(file|mman|random|socket|stat|uio)\.h)"
)

PROSE_FOLDERS = ("include", "kernels", "tests", "bench", "examples", "docs")
COMMENT_MARKS = {".hpp": "//", ".h": "//", ".inl": "//", ".cpp": "//", ".hip": "//", ".py": "#", ".md": None}
# Attention on the host has functions for single instruction sets, which only the compilers of hosts know.
HOST_COMPILERS_ALONE = re.compile(r"host/(attention/.+|attend\.hpp|instruction_set\.hpp)")
# Its configurations are those of storage alone, which has no prefix index.
STORAGE_ALONE = {"tests/backend/storage_under_test.hpp"}
# Sentences that readers whose mother tongue is not English stumble over: their subject is a question word or a nameless
# person, or their condition is inverted. Questions are not meant.
UNCLEAR_SENTENCE = re.compile(
    r"^[*(\"]*(?:[Ww]hat|[Ww]ho|[Ww]hose|[Ww]hatever|[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody)\b|\b[Ww]hoever\b|"
    r"(?:^|[,;:] )(?:[Ww]ere|[Hh]ad|[Ss]hould) (?:it|one|they|there|he)\b"
)


def headers(root):
    """Every header by the name that it is included as, without the leading `pagedkv/`."""
    found = {}
    for base in (root / "include" / "pagedkv", root / "kernels" / "pagedkv"):
        for path in sorted(base.rglob("*")):
            if path.is_file() and path.suffix in (".hpp", ".h", ".inl"):
                found[path.relative_to(base).as_posix()] = path
    return found


def part_of(name):
    """The part of the tree that a header belongs to; None for a folder of no part."""
    if name in ALLOWED:
        return name
    folders = name.split("/")[:-1]
    for length in (2, 1):
        if "/".join(folders[:length]) in ALLOWED:
            return "/".join(folders[:length])
    return None


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.DOTALL)
    return re.sub(r"//[^\n]*", "", text)


def includes(text):
    """Line number and operand of each #include, in whatever spacing."""
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        match = re.match(r"\s*#\s*(?:include|include_next|import)\b\s*(.*?)\s*$", line)
        if match:
            yield number, match.group(1)


def include_violations(root):
    found = []
    known = headers(root)
    for name, path in known.items():
        part = part_of(name)
        if part is None and name != UMBRELLA:
            found.append(f"{name}: no part of the tree has this folder")
            continue
        for line, operand in includes(path.read_text()):
            problem = problem_with_include(part, operand, known)
            if problem:
                found.append(f"{name}:{line}: {problem}")
    return found


def problem_with_include(part, operand, known):
    match = re.fullmatch(r"<([^<>]+)>", operand)
    if not match:
        return f"{operand} is not included as <...>"
    target = match.group(1)
    if not target.startswith("pagedkv/"):
        if DEVICE_HEADER.match(target) and part not in MAY_SEE_DEVICE:
            return f"{part} must not see {target}"
        return None
    target = target.removeprefix("pagedkv/")
    if target not in known:
        return f"pagedkv/{target} does not exist"
    if part is None:
        return None
    if target == UMBRELLA:
        return f"{part} includes the umbrella"
    if part_of(target) not in ALLOWED[part] | {part}:
        return f"{part} must not include {part_of(target)} ({target})"
    return None


def device_violations(root):
    """Names of a device runtime where only the host may be seen."""
    found = []
    for name, path in headers(root).items():
        # Elements and function attributes are shared by kernels and host, under a macro test.
        if part_of(name) in MAY_SEE_DEVICE or PLATFORM_HEADER.fullmatch(name):
            continue
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            match = DEVICE_NAME.search(line)
            if match:
                found.append(f"{name}:{number}: names {match.group()}")
    return found


def foreign_include_violations(root):
    """Libraries that a host program would meet without having asked for them."""
    found = []
    for name, path in headers(root).items():
        if part_of(name) in MAY_SEE_DEVICE:
            continue
        for line, operand in includes(path.read_text()):
            expected = C_HEADER if part_of(name) == "c" else FOREIGN_HEADER
            if not operand.startswith("<pagedkv/") and not expected.fullmatch(operand.strip("<>")):
                found.append(f"{name}:{line}: {operand} brings names that are not ours")
    return found


def macro_violations(preprocessed, root):
    """Macros that headers below a folder leave defined or undefine, from the output of a preprocessor with -dD."""
    changed, file = {}, ""
    for line in preprocessed.splitlines():
        if match := re.match(r'# \d+ "(.*?)"', line):
            file = match.group(1)
        elif (match := re.match(r"#(define|undef) (\w+)", line)) and file.startswith(str(root)):
            if not match.group(2).startswith("PAGEDKV_"):
                changed[match.group(2)] = file
    return [f"{file}: defines or undefines {name}" for name, file in changed.items()]


def runtime_name_violations(root):
    """Names of a device runtime, or of a device compiler, outside the headers that translate them."""
    found = []
    for name, path in headers(root).items():
        if PLATFORM_HEADER.fullmatch(name):
            continue
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            match = None if re.match(r"\s*#", line) else RUNTIME_NAME.search(line)
            if match:
                found.append(f"{name}:{number}: names {match.group()}")
    return found


def foreign_name_violations(root):
    """Macros and global names that are not pagedkv's, which every user of a header would get."""
    found = []
    for name, path in headers(root).items():
        text = without_comments(path.read_text())
        for number, line in enumerate(text.splitlines(), 1):
            match = re.match(r"\s*#\s*define\s+(\w+)", line)
            if match and not match.group(1).startswith("PAGEDKV_"):
                found.append(f"{name}:{number}: defines {match.group(1)}")
        if part_of(name) == "c":
            text = re.sub(r'extern "C" \{|\}(?=\s*#endif)', "", text)
        for declaration in global_declarations(text):
            if part_of(name) != "c" or not C_DECLARATION.fullmatch(declaration):
                found.append(f"{name}: `{declaration}` is global")
    return found


def global_declarations(text):
    """What is declared in no namespace, each cut short at its first brace or semicolon."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*#[^\n]*", "", text, flags=re.MULTILINE)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', '""', text)
    depth, start = 0, 0
    for position, character in enumerate(text):
        if character in "{;" and depth == 0:
            declaration = text[start:position].strip()
            if declaration and not re.fullmatch(r"namespace\s+(pagedkv|std)\b[\w:\s]*", declaration):
                yield " ".join(declaration.split())
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character in "};" and depth == 0:
            start = position + 1


def template_heads(text):
    """The parameter list after each `template <`, brackets balanced."""
    for match in re.finditer(r"\btemplate\s*<", text):
        depth, position = 1, match.end()
        while depth and position < len(text):
            depth += {"<": 1, ">": -1}.get(text[position], 0)
            position += 1
        yield text[: match.start()].count("\n") + 1, text[match.end() : position - 1]


def default_policy_violations(root):
    found = []
    for name, path in headers(root).items():
        if name == UMBRELLA:
            continue
        for line, head in template_heads(without_comments(path.read_text())):
            match = DEFAULTED_ROLE.search(head)
            if match:
                found.append(f"{name}:{line}: `{match.group()}…` defaults a policy; only {UMBRELLA} may")
    return found


def policy_violations(root):
    """Models of an axis that do not assert its concept, or that the list of the axis leaves out."""
    found = []
    known = headers(root)
    asserted = {}  # by axis, the models, each with its header
    for name, path in known.items():
        match = re.fullmatch(r"policy/(\w+)/(\w+)\.hpp", name)
        if not match:
            continue
        axis, header = match.groups()
        models = re.findall(r"static_assert\(\w+<(\w+)>", path.read_text())
        asserted.setdefault(axis, {}).update(dict.fromkeys(models, name))
        if not models and header not in ("concept", "all"):
            found.append(f"{name}: does not assert the concept of its axis")
    for axis, models in asserted.items():
        everything = known.get(f"policy/{axis}/all.hpp")
        text = everything.read_text() if everything else ""
        list_of_all = re.search(r"policy_list<([^>]*)>", text)
        if not list_of_all:
            continue
        listed = re.findall(r"\w+", list_of_all.group(1))
        left_out = re.findall(r"`(\w+)`", " ".join(re.findall(r"///.*", text)))  # which the comment gives reasons for
        found += [f"{name}: policy/{axis}/all.hpp does not list {model}" for model, name in models.items() if model not in listed + left_out]
        unasserted = [model for model in listed if model not in models and f"policy/{axis}/{model}.hpp" not in known]
        found += [f"policy/{axis}/all.hpp: {model} does not assert the concept of its axis" for model in unasserted]
    return found


def unbuilt_violations(root):
    """Test and benchmark files that no meson.build names, so that they would silently never run."""
    found = []
    for base in (root / "tests", root / "bench"):
        for path in sorted(base.glob("*/*")):
            if not re.search(r"_(test\.cpp|test\.py|bench\.cpp)$", path.name):
                continue
            area = path.parent
            for listing, entry in ((area / "meson.build", path.name), (base / "meson.build", area.name)):
                if not listing.exists() or f"'{entry}'" not in listing.read_text():
                    found.append(f"{path.relative_to(root)}: {listing.relative_to(root)} does not name '{entry}'")
    return found


def build_folder_violations(root):
    """Scripts and pages that configure one build folder with different options: those of the first would stay."""
    found, options = [], {}
    for path in sorted([*root.glob("scripts/*"), *root.glob("docs/*.md"), *root.glob("*.md")]):
        commands = re.findall(r"^(?:\$ )?(?:build|meson setup) ([^&\n]*)", path.read_text(), re.MULTILINE) if path.is_file() else []
        for words in map(str.split, commands):
            folder = next(word for word in words if not word.startswith("-")).removeprefix("build/")
            chosen = {word for word in words if word.startswith("-")}
            if options.setdefault(folder, chosen) != chosen:
                found.append(f"{path.relative_to(root)}: build/{folder} has other options elsewhere")
    return found


def untagged_random_tests(root):
    """Test cases that draw from a seed without the tag by which scripts/nightly finds them."""
    found = []
    for path in sorted((root / "tests").rglob("*_test.cpp")):
        for case in re.split(r"^(?=(?:TEMPLATE_\w*)?TEST_CASE)", path.read_text(), flags=re.MULTILINE)[1:]:
            body = case.split("\n}\n")[0]
            tags = re.search(r'"((?:\[[^\]"]+\])+)"', body)
            if re.search(r"getSeed\(\)|take\(\d+, random\(", body) and not (tags and "[random]" in tags[1]):
                name = re.search(r'"([^"]*)"', body)[1]
                found.append(f"{path.relative_to(root)}: `{name}` lacks the tag [random]")
    return found


def headers_not_for_devices(root):
    """Headers for users that the program for the front ends of devices' compilers does not include."""
    known = headers(root)
    reached, ahead = set(), [root / "tests" / "kernels" / "device_headers.cpp"]
    while ahead:
        for _, operand in includes(ahead.pop().read_text()):
            name = operand.strip("<>").removeprefix("pagedkv/")
            if operand.startswith("<pagedkv/") and name in known and name not in reached:
                reached.add(name)
                ahead.append(known[name])
    users = [name for name, path in known.items() if path.is_relative_to(root / "include")]
    return [
        f"tests/kernels/device_headers.cpp does not include {name}"
        for name in users
        if name not in reached and not HOST_COMPILERS_ALONE.fullmatch(name)
    ]


def areas_that_nightly_omits(root):
    """Programs of tests in C++ that scripts/nightly runs neither each night nor on a busy machine."""
    text = (root / "scripts" / "nightly").read_text()
    run = set(" ".join(re.findall(r"^\s*\w*areas\+?=\(([a-z_ ]+)\)", text, re.MULTILINE)).split())
    programs = set()
    for path in (root / "tests").glob("*/meson.build"):
        for added in re.findall(r"test_programs \+= \{\s*'(\w+)'", path.read_text()):
            programs.add(added)
    return [f"scripts/nightly does not run {name}" for name in sorted(programs - run)]


def unseeded_caches(root):
    """Configurations of caches in tests whose prefix index would draw its seed, so that --rng-seed does not repeat them."""
    found = []
    for path in sorted((root / "tests").rglob("*.[ch]pp")):
        text = path.read_text()
        makes_caches = path.suffix == ".hpp" or "_cache<" in text
        for made in re.finditer(r"^( *)auto (\w+) = cache_config\{(.*)\};\n", text, re.MULTILINE):
            function = text[made.start() : text.find("\n}\n", made.end())]
            if makes_caches and path.relative_to(root).as_posix() not in STORAGE_ALONE and "hash_seed" not in function:
                found.append(f"{path.relative_to(root)}: `{made[2]}` has no hash_seed")
    return found


def paragraphs(path):
    """First line and text of each paragraph: of a document without its code, or of the comments in a source file."""
    text, mark = path.read_text(), COMMENT_MARKS[path.suffix]
    if mark is None:
        text = re.sub(r"^```.*?^```", lambda code: "\n" * code.group().count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    first, words, remark = 0, "", False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = remark
        if mark is not None:
            comment = re.search(rf"(?:^|\s){mark}+[<!]?(?: (.*))?$", line)
            remark = comment is not None and line[: comment.start()].strip() != ""  # behind code
            begins = begins or remark
            line = (comment.group(1) or "") if comment else ""
        item = re.match(r"\s*(?:[-*>|] ?|\d+\. )", line)
        if words and (begins or item or not line.strip()):
            yield first, words
            words = ""
        if line.strip():
            first = first if words else number
            words = f"{words} {line[item.end() :] if item else line}".strip()


def prose_violations(root):
    """Sentences in comments and documents whose subject is "what", "who" or nobody in particular."""
    found = []
    paths = [path for folder in PROSE_FOLDERS for path in (root / folder).rglob("*")] + list(root.glob("*.md"))
    for path in sorted(path for path in paths if path.suffix in COMMENT_MARKS and path.is_file()):
        for line, text in paragraphs(path):
            for sentence in re.split(r"(?<=[.!?])\s+", text):
                if UNCLEAR_SENTENCE.search(sentence) and not sentence.endswith("?"):
                    found.append(f"{path.relative_to(root)}:{line}: {sentence}")
    return found


# Prose alone, in a comment of its own: the formatter wraps code, and neither tables nor programs in comments can be wrapped.
WIDE_COMMENT = re.compile(r"(?=.{121}) *///? [^ |].*")


def wide_comments(root):
    """Lines of comments that are wider than the formatter lets code be."""
    sources = [path for folder in PROSE_FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in {".hpp", ".inl", ".cpp"}]
    lines = ((path, number, line) for path in sources for number, line in enumerate(path.read_text().splitlines(), 1))
    return [f"{path.relative_to(root)}:{number}: {len(line)} columns" for path, number, line in lines if WIDE_COMMENT.fullmatch(line)]


def missing_headers(root):
    """Headers that a page or a comment names, by a path or by a name alone, and that are nowhere in the tree."""
    paths = [path.relative_to(root).as_posix() for folder in PROSE_FOLDERS for path in (root / folder).rglob("*.hpp")]
    pages = [*sorted((root / "docs").glob("*.md")), *(path for path in sorted(root.glob("*.md")) if path.name != "CHANGELOG.md")]
    sources = [path for folder in ("include", "kernels") for path in sorted((root / folder).rglob("*.hpp"))]
    found = []
    for page in [*pages, *sources]:
        for line, text in paragraphs(page):
            for name in re.findall(r"(?<![\w/>.*-])(?:[\w./-]*/)?\w+\.hpp\b", text):
                ending = "/" + name.lstrip("./")
                if not any(f"/{path}".endswith(ending) for path in paths):
                    found.append(f"{page.relative_to(root)}:{line}: there is no {name}")
    return found


# Figures with a unit, in cells that begin with a number; and headings above bare numbers.
FIGURE = re.compile(r"(?<!\w)[\d.,]+ (?:ns|µs|ms|s|min|GB/s|[GT]FLOP/s|%)(?!\w)")
MEASURED = re.compile(r"(?<!\w)(?:ns|µs|ms|s|GB/s|[GT]FLOP/s|ratio|share|times)(?!\w)")
PRINTED = re.compile(r"<!-- printed by (\S+) -->")


def is_measured(heading, rows):
    numbers = [cell for row in rows for cell in row if re.match(r"[−+-]?\.?\d", cell)]
    bare = [cell for cell in numbers if re.fullmatch(r"[\d.,±–% /-]+", cell)]
    return any(map(FIGURE.search, numbers)) or bool(bare and MEASURED.search(" ".join(heading)))


def typed_tables(root):
    """Tables of times, rates or ratios that no script prints: neither between marks of scripts/bench, nor below the name of another file
    that prints them, nor in a section of what was measured once, by hand."""
    found = []
    for path in [*sorted((root / "docs").glob("*.md")), *sorted(root.glob("*.md"))]:
        text = re.sub(
            r"^```.*?^```$|^<!-- table \w+ -->$.*?^<!-- end -->$",
            lambda part: "\n" * part.group().count("\n"),
            path.read_text(),
            flags=re.DOTALL | re.MULTILINE,
        )
        level_by_hand, above = 7, ""
        lines = iter(enumerate(text.splitlines(), 1))
        for number, line in lines:
            if heading := re.match(r"(#+) (.*)", line):
                level = len(heading[1])
                if level <= level_by_hand:
                    level_by_hand = level if "by hand" in heading[2] else 7
            if line.startswith("|"):
                cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table_at(line, lines)]
                printed = PRINTED.fullmatch(above)
                is_known = level_by_hand < 7 or (printed and (root / printed[1]).is_file())
                if not is_known and is_measured(cells[0], cells[2:]):
                    found.append(f"{path.relative_to(root)}:{number}: no script prints `{line}`")
            above = line
    return found


def table_at(first, lines):
    """This line and those behind it, up to the one that ends the table."""
    yield first
    for _, line in lines:
        if not line.startswith("|"):
            return
        yield line


# Where headers name what a refusal is about. Memory and devices fail as they like; their words are not the caller's to mend.
REFUSAL = re.compile(
    r"error_code::(?!out_of_memory|backend_failure)\w+,(?P<made>[^;]*);|"
    r"\b(?:bad_index|wrong|refuse|too_small|require_positive|check_range|check_row_pointer|check_row_shape)\((?P<called>[^;]*);|"
    r"\bfinds_wrong\((?P<listed>[^;]*?)\}\}\)|\bfield\{(?P<field>\"[^\"]*\")|\bid_name = (?P<id>\"[^\"]*\")|\bmake_record\([\w.]+, (?P<table>\"[^\"]*\")"
)


# Refusals that no test can afford: the first begins at 2³⁰ records.
UNREACHED = {"records of all tiers"}


def joined_literals(text):
    """A source in which neighbouring string literals are one."""
    return re.sub(r'"\s*\n\s*"', "", text)


def untested_refusals(root):
    """Subjects of refusals that no test names."""
    tests = "".join(joined_literals(path.read_text()) for path in sorted((root / "tests").rglob("*"))
                    if path.suffix in (".cpp", ".hpp", ".c", ".py"))
    found = []
    for name, path in headers(root).items():
        code = re.sub(r"(?:^|\s)//[^\n]*", "", path.read_text(), flags=re.MULTILINE)
        for match in REFUSAL.finditer(joined_literals(code)):
            for subject in re.findall(r'"([^"]+)"', next(filter(None, match.groups()))):
                if subject not in tests and subject not in UNREACHED:
                    found.append(f"{name}: no test names the refusal `{subject}`")
    return sorted(set(found))


# The classes whose operations meet faults, and the files of tests/faults with the operations of each.
FAULTY_CLASSES = {
    ("cache/kv_cache.hpp", "basic_kv_cache"): ("cache_world.hpp", "one_group_test.cpp", "groups_test.cpp", "attention_test.cpp"),
    ("tier/tiered_cache.hpp", "basic_tiered_cache"): ("cache_world.hpp", "tiers_test.cpp", "groups_test.cpp"),
    ("requests/request_tracker.hpp", "request_tracker"): ("requests_test.cpp",),
}
# They return what a constructor made, and take no memory; and constructors, whose faults have tests of their own.
WITHOUT_FAULTS = {"config", "plan", "view", "blocks", "state_part", "backend", "events", "create", "format_of"}


def public_operations(header, name):
    """Names of the public member functions of a class, declared or defined, whatever their type and attributes."""
    text = re.sub(r"//[^\n]*", "", header.read_text())
    body = text[text.index(f"\nclass {name}") :]
    public = re.findall(r"\n public:(.*?)(?=\n (?:protected|private):)", body[: body.index("\n};")] + "\n private:", re.DOTALL)
    # A declaration begins at the members' indentation; its name stands before the first parenthesis.
    declared = re.sub(r"\[\[.*?\]\] *", "", "\n".join(public)).replace("decltype(auto)", "auto")
    starts = r"^  (?! |template\b|using\b|friend\b|static_assert\b)"
    return set(re.findall(rf"{starts}[^=({{;}}]*?(\w+)\(", declared, flags=re.MULTILINE)) - {name}


def braced(text, start):
    """What the first brace from a place on encloses."""
    depth = 0
    for brace in re.finditer(r"[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return text[start : start + brace.end()]
    return ""


def operations_with_faults(text):
    """Operations of the rows of a file's tables: a row's name begins with the verb, and its first function calls it."""
    rows = re.finditer(r'operation(?:<\w+>)?\{\s*"(\w+)[^"]*",\s*\[\]\([^{]*', text)
    return {row[1] for row in rows if f".{row[1]}(" in braced(text, row.end())}


def operations_without_faults(root):
    """Operations of caches and trackers that no table of tests/faults has."""
    found = []
    for (header, name), files in FAULTY_CLASSES.items():
        tested = set().union(*(operations_with_faults((root / "tests" / "faults" / file).read_text()) for file in files))
        untested = public_operations(root / "include" / "pagedkv" / header, name) - tested - WITHOUT_FAULTS
        found += [f"tests/faults injects none into {name}::{verb}" for verb in sorted(untested)]
    return found
