"""The tables of docs/amd_emulation.md. Their columns are targets; their rows are tests, or families of kernels."""

LACKING = "not run"
TOTAL = "all"  # the last row


def merge(page, results):
    """The page with results, by a table's first heading, target and row. All other cells, and all text, stay."""
    lines, left = [], dict(results)
    at = iter(page.splitlines())
    for line in at:
        heading = cells_of(line)[0]
        if heading not in left:
            lines.append(line)
            continue
        columns = {target: {} for target in cells_of(line)[1:]}
        next(at)  # the line below the headings
        rows = []
        for below in at:
            if not below.startswith("|"):
                break
            row, *cells = cells_of(below)
            rows.append(row)
            for target, cell in zip(columns, cells, strict=True):
                columns[target][row] = cell
        else:
            below = None
        for target, column in left.pop(heading).items():
            columns.setdefault(target, {}).update(column)
            rows += [row for row in column if row not in rows]
        lines += table(heading, columns, sorted(rows, key=lambda row: row == TOTAL))
        lines += [below] if below is not None else []
    if left:
        raise ValueError(f"the page has no table of: {', '.join(left)}")
    return "\n".join(lines) + "\n"


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def table(heading, columns, rows):
    targets = sorted(columns, key=lambda target: int(target.removeprefix("gfx"), 16))
    yield f"| {heading} | {' | '.join(targets)} |"
    yield "|---|" + "---|" * len(targets)
    for row in rows:
        yield f"| {row} | {' | '.join(columns[target].get(row, LACKING) for target in targets)} |"
