"""A watched engine's metrics and log: what the monitor shows, the dashboard asks for, and the trace contains."""

import contextlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
BUILD_ROOT = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"])
COMPILER = shlex.split(os.environ["PAGEDKV_COMPILER"])
MONITOR = SOURCE_ROOT / "examples" / "monitor"
ENGINE = BUILD_ROOT / "examples" / "watched_engine"

EVERY_METRIC = """
#include <pagedkv/metrics/prometheus.hpp>
#include <pagedkv/metrics/statistics.hpp>
#include <pagedkv/requests/metrics.hpp>
#include <pagedkv/tier/tier_statistics.hpp>
#include <cstdio>
int main() {
  auto text = std::string();
  pagedkv::append_prometheus(text, pagedkv::cache_statistics{});
  pagedkv::append_prometheus(text, pagedkv::memory_profile{});
  pagedkv::append_prometheus(text, pagedkv::tracker_statistics{});
  pagedkv::append_prometheus(text, pagedkv::tier_statistics{});
  std::fputs(text.c_str(), stdout);
}
"""


def load(name):
    spec = importlib.util.spec_from_file_location(name, MONITOR / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


monitor, trace = load("monitor"), load("trace")


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)


class Dashboard(Folder):
    def table(self):
        """The kinds of all metrics, and the values of their labels, as the library writes them."""
        source, program = self.folder / "metrics.cpp", self.folder / "metrics"
        source.write_text(EVERY_METRIC)
        built = run(*COMPILER, "-std=c++20", f"-I{SOURCE_ROOT / 'include'}", source, "-o", program)
        self.assertEqual(built.returncode, 0, built.stderr)
        text = run(program).stdout
        kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, flags=re.MULTILINE))
        labels = {}
        for name, label in re.findall(r"^(pagedkv_\w+)\{(\w+)=", text, flags=re.MULTILINE):
            labels[name] = label
        return kinds, labels

    def test_it_asks_for_every_metric_as_its_kind_wants(self):
        kinds, labels = self.table()
        dashboard = json.loads((MONITOR / "grafana.json").read_text())
        asked = set()
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"]
                with self.subTest(panel=panel["title"], expression=expression):
                    for name in re.findall(r"\bpagedkv_\w+", expression):
                        self.assertIn(name, kinds)
                        asked.add(name)
                        rated = re.search(rf"\brate\({name}\b[^()]*\[\$__rate_interval\]\)", expression) is not None
                        self.assertEqual(rated, kinds[name] == "counter")
                    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
                    own = {labels[name] for name in re.findall(r"\bpagedkv_\w+", expression) if name in labels}
                    self.assertLessEqual(grouped - {"instance", "tier"}, own)
                    self.assertLessEqual(set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])), grouped)
        self.assertEqual(asked, set(kinds))

    def test_it_is_one_that_grafana_takes(self):
        dashboard = json.loads((MONITOR / "grafana.json").read_text())
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(dashboard["panels"])))
        self.assertEqual(used, variables)
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        places = [panel["gridPos"] for panel in panels]
        cells = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]
        self.assertEqual(len(set(cells)), len(cells), "panels overlap")
        self.assertTrue(all(0 <= x < 24 for x, _ in cells))

    def test_the_document_lists_every_metric(self):
        kinds, _ = self.table()
        rows = re.findall(r"^\| (`pagedkv_.*?) \| (counter|gauge) \|", (SOURCE_ROOT / "docs" / "metrics.md").read_text(), flags=re.MULTILINE)
        self.assertEqual({name: kind for names, kind in rows for name in re.findall(r"`(\w+)`", names)}, kinds)


class Monitor(Folder):
    def lines(self, *texts, seconds=2.0):
        """The screen after the last of these texts."""
        now, before = monitor.parse(texts[-1]), monitor.parse(texts[-2]) if len(texts) > 1 else None
        return "\n".join(monitor.screen(now, before, seconds, 60))

    def text(self, prompts, hits, labels=""):
        inside = labels and f"{{{labels}}}"
        own = labels and f",{labels}"
        return (f"# HELP pagedkv_prompts_total A help.\npagedkv_prompts_total{inside} {prompts}\n"
                f'pagedkv_pool_blocks{{state="free"{own}}} 25\npagedkv_pool_blocks{{state="in_use"{own}}} 75\n'
                f"pagedkv_prompt_blocks_total{inside} {prompts}\npagedkv_hit_blocks_total{inside} {hits}\nother_metric 5\n")

    def test_rates_are_those_between_two_readings(self):
        first, second = self.text(100, 50), self.text(300, 200)
        self.assertIn("hits      50.0 % of the prompts' blocks, – since", self.lines(first))
        self.assertIn("prompts –,", self.lines(first))
        both = self.lines(first, second)
        self.assertIn("hits      66.7 % of the prompts' blocks, 75.0 % since the last reading", both)
        self.assertIn("prompts 100/s", both)
        self.assertIn("prompts 5.0/s", self.lines(second, self.text(10, 0)), "a process that began anew")

    def test_the_bar_has_a_share_for_each_state(self):
        self.assertIn("█" * 38 + "░" * 12, self.lines(self.text(1, 0)))

    def test_caches_are_told_apart_by_their_labels(self):
        both = self.lines(self.text(4, 1, 'model="a \\"b\\"",rank="0"') + self.text(4, 3, 'model="a \\"b\\"",rank="1"'))
        self.assertIn('── model=a "b" rank=0 ', both)
        self.assertIn("25.0 %", both.partition("rank=1")[0])
        self.assertIn("75.0 % of the prompts", both.partition("rank=1")[2])

    def test_a_tier_has_lines_of_its_own(self):
        shown = self.lines('pagedkv_tier_records{tier="host"} 20000\npagedkv_tier_places{tier="host"} 50000\n')
        self.assertIn("── tier=host \ntier      20.0k records of 50.0k;", shown)

    def test_a_text_without_metrics_says_so(self):
        self.assertEqual(self.lines("other 1\n"), "no metrics of pagedkv in this text")

    def test_an_engines_metrics_from_a_file_and_over_http(self):
        metrics = self.folder / "metrics"
        self.assertEqual(run(ENGINE, self.folder / "log", metrics, 60).returncode, 0)
        from_file = run(sys.executable, MONITOR / "monitor.py", "--once", metrics)
        self.assertEqual(from_file.returncode, 0, from_file.stderr)
        for part in ("blocks    48: in use", "running,", "of K and V"):
            self.assertIn(part, from_file.stdout)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/metrics" else 404)
                self.end_headers()
                self.wfile.write(metrics.read_bytes())

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.addCleanup(server.server_close)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        address = f"http://127.0.0.1:{server.server_port}"
        self.assertEqual(run(sys.executable, MONITOR / "monitor.py", "--once", f"{address}/metrics").stdout, from_file.stdout)
        lost = run(sys.executable, MONITOR / "monitor.py", "--once", f"{address}/elsewhere")
        self.assertEqual((lost.returncode, lost.stdout), (1, ""))
        self.assertIn("404", lost.stderr)

    def test_what_is_no_source_is_named(self):
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(60)  # against hangs only
        self.addCleanup(listener.close)

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(60)
                connection.recv(1 << 16)
                connection.sendall(b"no HTTP\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        self.addCleanup(thread.join)
        infinite = self.folder / "metrics"
        infinite.write_text('pagedkv_pool_blocks{state="free"} 1e400\n')
        for source in (f"http://127.0.0.1:{listener.getsockname()[1]}/", "http://127.0.0.1:port/", infinite):
            done = run(sys.executable, MONITOR / "monitor.py", "--once", source)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertTrue(done.stderr.startswith(f"monitor.py: {source}: "), done.stderr)
        for interval in ("nan", "inf", "1e300", "0", "-1"):
            done = run(sys.executable, MONITOR / "monitor.py", f"--interval={interval}", infinite)
            self.assertEqual(done.returncode, 2)
            self.assertIn("--interval", done.stderr.splitlines()[-1])

    def test_counts_of_an_engine_that_are_none_are_refused(self):
        for counts in (["many"], ["-1"], ["5", "-1"], ["99999999999"], ["5x"], ["5", ""]):
            done = run(ENGINE, self.folder / "log", self.folder / "metrics", *counts)
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage", done.stderr)

    def test_a_source_that_is_gone_is_read_again(self):
        metrics = self.folder / "metrics"
        shown, naps = io.StringIO(), []

        def nap(_):
            naps.append(shown.getvalue())
            if len(naps) == 3:
                raise KeyboardInterrupt
            metrics.write_text(self.text(100 * len(naps), 50))

        monitor.time, real = type("Clock", (), {"sleep": staticmethod(nap), "monotonic": staticmethod(lambda: float(len(naps)))}), monitor.time
        self.addCleanup(setattr, monitor, "time", real)
        with contextlib.redirect_stdout(shown), self.assertRaises(KeyboardInterrupt):
            monitor.watch(str(metrics), 1.0)
        self.assertIn("No such file", naps[0])
        self.assertIn("prompts –", naps[1])
        self.assertIn("prompts 100/s", naps[2])


class Trace(Folder):
    def engine_log(self):
        log = self.folder / "log"
        self.assertEqual(run(ENGINE, log, self.folder / "metrics", 120).returncode, 0)
        return log

    def check_format(self, made):
        """The rules of Chrome's trace format, as far as they concern these kinds of events."""
        open_steps, ends = set(), {}
        for event in made["traceEvents"]:
            self.assertLessEqual({"ph", "name", "pid", "tid"}, set(event))
            if event["ph"] == "M":
                self.assertIn(event["name"], ("process_name", "thread_name"))
                continue
            self.assertGreaterEqual(event["ts"], 0)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
                ends.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
            elif event["ph"] == "b":
                self.assertNotIn(event["id"], open_steps)
                open_steps.add(event["id"])
            elif event["ph"] == "e":
                open_steps.remove(event["id"])
            elif event["ph"] == "i":
                self.assertEqual(event["s"], "t")
            else:
                self.assertEqual(event["ph"], "C")
        self.assertEqual(open_steps, set())
        for spans in ends.values():  # of one track: the first holds all others, which follow each other
            whole, *parts = spans
            for before, after in zip([(whole[0], whole[0]), *parts], [*parts, (whole[1], whole[1])]):
                self.assertLessEqual(before[1], after[0])

    def test_every_request_of_a_log_has_its_life(self):
        log = self.engine_log()
        events = list(trace.parse(log.read_text().splitlines()))
        made = trace.make_trace(events)
        self.check_format(made)

        def count(*kinds):
            return sum(kind in kinds for _, kind, _ in events)

        def shown(phase, name):
            return sum(event["ph"] == phase and event["name"] == name for event in made["traceEvents"])

        self.assertGreater(count("preempted"), 0)
        self.assertEqual(shown("X", "request"), len({fields["request"] for _, kind, fields in events if kind == "started"}))
        self.assertEqual(shown("X", "running"), count("started"))
        self.assertEqual(shown("X", "preempted"), count("preempted"))
        for kind in ("admitted", "hit", "released", "stored", "evicted", "refused"):
            self.assertEqual(shown("i", kind), count(kind))
        self.assertEqual(sum(event["ph"] == "b" for event in made["traceEvents"]), count("step_begun"))

    def test_one_requests_life_alone(self):
        log = self.engine_log()
        events = list(trace.parse(log.read_text().splitlines()))
        chosen = next(fields["request"] for _, kind, fields in events if kind == "preempted")
        output = self.folder / "life.json"
        done = run(sys.executable, MONITOR / "trace.py", log, "--request", chosen, "--output", output)
        self.assertEqual(done.returncode, 0, done.stderr)
        made = json.loads(output.read_text())
        self.check_format(made)
        of_requests = [event for event in made["traceEvents"] if event["pid"] == trace.REQUESTS and event["ph"] == "X"]
        self.assertEqual([event["name"] for event in of_requests[:4]], ["request", "running", "preempted", "running"])
        whole = of_requests[0]
        self.assertTrue(all(whole["ts"] <= event["ts"] <= whole["ts"] + whole["dur"] for event in made["traceEvents"]
                            if event["ph"] == "i"))

    def test_spans_by_hand(self):
        lines = ["5 admitted sequence=1 tokens=20 blocks=2", "6 started request=9 sequence=1", "7 step_begun step=1",
                 "8 preempted request=9 sequence=1", "9 released sequence=1 tokens=20", "12 hit sequence=2 tokens=16",
                 "13 started request=9 sequence=2", "15 step_retired step=1", "20 ended request=9", "21 released sequence=2 tokens=20"]
        made = trace.make_trace(trace.parse(lines))
        self.check_format(made)
        spans = [(event["name"], event["ts"], event["dur"]) for event in made["traceEvents"] if event["ph"] == "X"]
        self.assertEqual(spans, [("request", 5, 16), ("running", 6, 2), ("preempted", 8, 5), ("running", 13, 7)])
        counts = [(event["ts"], event["args"]) for event in made["traceEvents"] if event["ph"] == "C"]
        self.assertEqual(counts[1], (8, {"running": 0, "preempted": 1}))

    def test_lines_without_times_and_lines_that_are_no_events(self):
        self.assertEqual(list(trace.parse(["a x=1", "", "b"])), [(1, "a", {"x": "1"}), (3, "b", {})])
        with self.assertRaisesRegex(ValueError, "line 2 is not an event: hello world"):
            list(trace.parse(["a x=1", "hello world"]))
        for line in ("started request=1", "preempted x=1", "ended", "step_begun", "step_retired x=1"):
            with self.assertRaisesRegex(ValueError, f"line 1 has no .*: {line}"):
                list(trace.parse([line]))
        log = self.folder / "log"
        log.write_text("a x=1\n")
        done = run(sys.executable, MONITOR / "trace.py", log, "--request", "3")
        self.assertEqual((done.returncode, done.stderr), (1, f"trace.py: no request 3 in {log}\n"))


if __name__ == "__main__":
    unittest.main()
