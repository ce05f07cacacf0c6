"""Tables of pages with a module of their own, from small made-up figures; and how the engine's figures are taken."""

import contextlib
import json
import os
import pathlib
import stat
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import bench_tables  # noqa: E402
import engine_tables  # noqa: E402
import random_model  # noqa: E402


def made_up(table, value_of):
    """Results with all figures of a table; `value_of` gets a benchmark and a figure."""
    results = {}
    for row in bench_tables.TABLES[table][1]:
        for area, benchmark, figure in (each for cell in row if not isinstance(cell, str) for each in cell):
            results.setdefault(area, {}).setdefault(benchmark, {})[figure] = value_of(benchmark, figure)
    return results


def rows(results, table):
    made, _ = bench_tables.tables(results)
    return [line[2:-2].split(" | ") for line in made[table].splitlines()]


class EvictionTables(unittest.TestCase):
    def test_a_table_of_one_figure_a_cell(self):
        figures = {"true_hints": 0.4224, "oracle": 0.425, "no_hints": 0.1}
        made, _ = bench_tables.tables(made_up("known_pauses", lambda _, figure: figures[figure]))
        self.assertEqual(
            made["known_pauses"],
            "| blocks | true hints | oracle | no hints |\n| --- | --- | --- | --- |\n"
            "| 500 | .422 | .425 | .100 |\n| 1,000 | .422 | .425 | .100 |\n| 2,000 | .422 | .425 | .100 |",
        )

    def test_policies_that_sample_have_a_deviation(self):
        figures = {"hit_ratio": 0.04452, "deviation": 0.00118, "bytes_per_block": 8.0001}
        found = {row[0]: row[1:] for row in rows(made_up("hit_ratios", lambda _, figure: figures[figure]), "hit_ratios")}
        self.assertEqual(found["`lru`"], [".0445"] * 6 + ["8"])
        self.assertEqual(found["`hit_density`"], [".0445 ± .0012"] * 6 + ["8"])
        self.assertEqual(found["bound"], [".0445"] * 6 + [""])

    def test_a_gain_is_of_the_means_of_four_seeds(self):
        def value(benchmark, figure):
            return int(figure[-1]) / 100 + (0.5 if "hit_density" in benchmark else 0)

        self.assertEqual(rows(made_up("generated_traffic", value), "generated_traffic")[2], ["`shared_system_prompt`"] + [".025 → .525"] * 4)

    def test_shortfalls_name_the_worst_place(self):
        def value(benchmark, figure):
            if benchmark == "hit_ratio<hit_density, generated_uniform>/8000":
                return 0.4 if figure == "of_seed_9006" else 0.49
            if benchmark == "hit_ratio<arc, agents>/700":
                return 0.6
            return 0.5

        found = {row[0]: row[1:] for row in rows(made_up("shortfalls", value), "shortfalls")}
        self.assertEqual(
            found["generated traffic, four sizes"],
            [".0100 (`uniform` at 8,000)", ".1000 (`uniform` at 8,000)", ".0100 (`uniform` at 8,000)", ".1000 (`uniform` at 8,000)"],
        )
        self.assertEqual(found["agents, twelve sizes"], ["never", "never", ".1000 (at 700)", ".1000 (at 700)"])
        self.assertEqual(found["conversations, six sizes"], ["never"] * 4)

    def test_costs_of_three_sizes(self):
        found = rows(made_up("eviction_costs", lambda benchmark, _: len(benchmark)), "eviction_costs")
        self.assertEqual(found[2], ["`lru`"] + ["25 / 26 / 27"] * 3)

    def test_a_missing_figure_is_an_error(self):
        results = made_up("known_pauses", lambda *_: 0.5)
        del results["eviction"]["known_pauses/1000"]["oracle"]
        made, lacking = bench_tables.tables(results)
        self.assertNotIn("known_pauses", made)
        self.assertEqual(lacking["known_pauses"], ("eviction", "known_pauses/1000", "oracle"))
        self.assertIn("hit_ratios", lacking)


class EngineTables(unittest.TestCase):
    def run_programs(self, script):
        """With programs that are all this one."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for program in ("engine_stored", "engine_turns", "engine_load"):
                (folder / program).write_text(f"#!/usr/bin/env python3\nimport json, os, sys\n{script}\n")
                (folder / program).chmod(stat.S_IRWXU)
            with contextlib.redirect_stdout(None):
                return engine_tables.run(folder, folder / "conversation_trace.jsonl", folder)

    def test_rows_of_reports_have_names_and_flat_figures(self):
        row = '{"stored_as": "int8", "speed": 0.5, "first_token_ms": {"p50": 2}, "same": True, "blas": int(os.environ.get("OPENBLAS_NUM_THREADS", 9))}'
        results, errors = self.run_programs(f"json.dump([{row}], open(sys.argv[-1], 'w'))")
        self.assertEqual(errors, {})
        self.assertEqual(sorted(results), ["load/0.5", *sorted(engine_tables.RUNNING), "stored/int8", "turns/1"])
        self.assertEqual(results["load/0.5"]["first_token_ms.p50"], 2)
        self.assertNotIn("same", results["load/0.5"])
        self.assertEqual([name for name, figures in results.items() if figures["blas"] == 1], ["turns/1", "one_layer/100", "one_layer/1500"])

    def test_random_weights_have_the_sizes_of_their_names(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            random_model.write(folder, engine_tables.ONE_LAYER, lambda count: bytes(4 * count))
            data = (folder / "model.safetensors").read_bytes()
            config = json.loads((folder / "config.json").read_text())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        self.assertEqual(max(entry["data_offsets"][1] for entry in header.values()), len(data) - 8 - size)
        self.assertEqual(header["model.layers.0.self_attn.q_proj.weight"]["shape"], [16, 16])
        self.assertEqual(header["model.layers.0.mlp.down_proj.weight"]["shape"], [16, 32])
        self.assertEqual((config["num_hidden_layers"], config["model_type"]), (1, "llama"))

    def test_programs_that_fail_are_told(self):
        results, errors = self.run_programs("sys.exit('trace.jsonl: cannot be read')")
        self.assertEqual(results, {})
        self.assertEqual(errors["engine: load"], "trace.jsonl: cannot be read")

    def test_all_requests_of_a_trace_arrive_at_once(self):
        lines = [json.loads(line) for line in engine_tables.at_once(64, 32, 200).splitlines()]
        self.assertEqual((len(lines), {line["timestamp"] for line in lines}), (64, {0}))
        self.assertEqual((lines[0]["input_length"], lines[0]["output_length"]), (32 * 32, 32 * 200))
        self.assertEqual(len({each for line in lines for each in line["hash_ids"]}), 128)

    def test_tables(self):
        figures = {"largest": 0.02349, "relative_entropy": 4.81e-8, "same_best": 0.998}
        found = rows(made_up("stored", lambda _, figure: figures[figure]), "stored")
        self.assertEqual(found[4], ["int8", "0.023", "4.8e-8 nats", "99.8 %"])
        found = rows(made_up("turns", lambda _, figure: 48 if figure.endswith("tokens") else 5.84), "turns")
        self.assertEqual(found[2], ["in the pool", "2", "48", "5.8", "5.8", "5.8", ""])
        self.assertEqual(found[4], ["in a file", "2", "48", "5.8", "5.8", "5.8", "5.8"])
        found = rows(made_up("load", lambda _, figure: 0.0006 if figure == "cache_share" else 14.0), "load")
        self.assertEqual(found[2], ["14.00", "14.00", "14", "14 ms, 14 ms", "14 ms, 14 ms", "14 µs", "0.06 %"])
