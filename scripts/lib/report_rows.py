"""Tables with a row for each row of a report: of devices, and of peers. A benchmark's name has the row's first cells."""

SEPARATOR = " · "


def name_of(*parts):
    return SEPARATOR.join(map(str, parts))


def tables(columns, results):
    """As in bench_tables: by name, the heading and the rows. `columns`: by name of a table and its area, the headings of a name's
    parts, and by heading the figures of a row."""
    return {
        area: (
            [*left, *figures_of],
            [
                [*benchmark.split(SEPARATOR), *([(area, benchmark, figure) for figure in figures] for figures in figures_of.values())]
                for benchmark in results[area]
            ],
        )
        for area, (left, figures_of) in columns.items()
        if area in results
    }


def caption(results, areas):
    """Where a table's figures were measured, and beside what; nothing of the host's benchmarks."""
    known = results.get("machines", {})
    return "; ".join(dict.fromkeys(text for area in areas for text in known.get(area, {}).values()))


def machine(where, versions):
    """Of an area, in results: a later report replaces the text of the same peer."""
    return {"where": where, **{text.rpartition(" ")[0]: text for text in versions}}
