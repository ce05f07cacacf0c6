"""The server of examples/llama, driven by curl, by OpenAI's package and by clients that misbehave. No block may be in use at
the end of any test: the server's exit status tells."""

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
import zlib

SOURCE_ROOT = pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"])
sys.path.insert(0, str(SOURCE_ROOT / "build" / "python"))  # of scripts/install
try:
    import openai
except ImportError:
    openai = None

STORE = shutil.which("valkey-server") or shutil.which("redis-server")
PROGRAM = pathlib.Path(os.environ["PAGEDKV_BUILD_ROOT"]) / "examples" / "llama" / "llama_serve"
IS_SANITIZED = PROGRAM.exists() and any(name in PROGRAM.read_bytes() for name in (b"__asan_init", b"__tsan_init"))
MODEL = SOURCE_ROOT / "examples" / "llama" / "model"
LONG_CROWD = int(os.environ.get("PAGEDKV_SERVE_REQUESTS", "0"))
QUESTION = [{"role": "user", "content": "What is a hacker?"}]
LONG = {"prompt": "<|user|>What is a hacker?<|end|><|answer|>", "temperature": 0, "max_tokens": 120}


@unittest.skipUnless(PROGRAM.exists(), "libcpp-httplib-dev is not here: scripts/install takes it from Debian")
class Served(unittest.TestCase):
    options = ["--blocks", "256"]
    environment = {}

    def setUp(self):
        self.pauses = threading.Lock()
        # ThreadSanitizer does not see how the HTTP library, which is not compiled for it, guards its constants.
        environment = {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1", **os.environ, **self.environment}
        command = [PROGRAM, "--model", MODEL, "--name", "small", "--port", "0", *self.options]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.addCleanup(self.stop)
        self.address = re.fullmatch(r"small at http://(.+)\n", self.server.stdout.readline()).group(1)

    def stop(self):
        self.server.send_signal(signal.SIGTERM)
        _, errors = self.server.communicate()
        self.assertEqual((self.server.returncode, errors), (0, ""))

    def ask(self, method, path, body=None, headers={}):
        """The status and the body of an answer."""
        connection = http.client.HTTPConnection(self.address)
        try:
            connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def complete(self, **wishes):
        status, body = self.ask("POST", "/v1/completions", {**LONG, **wishes})
        self.assertEqual(status, 200, body)
        return body

    def metrics(self):
        rows = re.findall(r'^pagedkv_(\w+)\{model="small"(?:,\w+="(\w+)")?\} (\d+)$', self.ask("GET", "/metrics")[1], re.MULTILINE)
        return {(name, label): int(value) for name, label, value in rows}

    def metrics_at_rest(self):
        """Those when no request is left."""
        while True:
            values = self.metrics()
            if values["waiting_requests", ""] + values["requests", "running"] + values["requests", "preempted"] == 0:
                self.assertEqual(values["pool_blocks", "in_use"], 0)
                return values

    def connect(self):
        host, port = self.address.split(":")
        return socket.create_connection((host, int(port)))

    def send(self, connection, path, body):
        data = json.dumps(body)
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n{data}".encode())

    def leave(self, path, body, read=0):
        """Sends a request and closes the connection behind so many bytes of the answer."""
        with self.connect() as connection:
            self.send(connection, path, body)
            while read > 0:
                read -= len(connection.recv(read))

    @contextlib.contextmanager
    def paused(self):
        """Halts the server: however long one waits, nothing more comes from it."""
        with self.pauses:
            self.server.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self.server.pid, os.WSTOPPED)
            try:
                yield
            finally:
                self.server.send_signal(signal.SIGCONT)

    def time_out(self, path, body, read=0):
        """Sends a request and waits in vain for more than so many bytes of the answer."""
        with self.connect() as connection:
            if read > 0:
                self.send(connection, path, body)
                connection.recv(read, socket.MSG_WAITALL)
            with self.paused():
                if read == 0:
                    self.send(connection, path, body)
                connection.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    while connection.recv(4096):
                        self.assertGreater(read, 0)
                    self.assertGreater(read, 0)  # an answer that was whole before the pause ends, too


class Answers(Served):
    def test_a_stream_has_the_text_of_the_whole_answer(self):
        whole = json.loads(self.complete())["choices"][0]
        events = self.complete(stream=True).removesuffix("\n\n").split("\n\n")
        self.assertEqual(events.pop(), "data: [DONE]")
        choices = [json.loads(event.removeprefix("data: "))["choices"][0] for event in events]
        self.assertEqual("".join(choice["text"] for choice in choices), whole["text"])
        self.assertGreater(len(choices), 50)
        self.assertEqual([choice["finish_reason"] for choice in choices if choice["finish_reason"]], ["length"])

    def test_a_stop_ends_the_answer_before_it(self):
        whole = json.loads(self.complete())["choices"][0]["text"]
        stop = whole[40:49]
        for streams in (False, True):
            body = self.complete(stop=[stop, "no such words"], stream=streams)
            text = "".join(json.loads(f'"{found}"') for found in re.findall(r'"text":"((?:[^"\\]|\\.)*)"', body))
            self.assertEqual(text, whole[: whole.index(stop)])
            self.assertIn('"finish_reason":"stop"', body)
        self.assertEqual(self.metrics_at_rest()["ended_requests_total", "cancelled"], 2)

    def test_several_prompts_and_answers(self):
        texts = [LONG["prompt"], "<|user|>kluge<|end|><|answer|>"]
        alone = [json.loads(self.complete(prompt=text, max_tokens=20))["choices"][0]["text"] for text in texts]
        both = json.loads(self.complete(prompt=texts, max_tokens=20, n=2))
        self.assertEqual([choice["text"] for choice in both["choices"]], [alone[0], alone[0], alone[1], alone[1]])
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1, 2, 3])
        self.assertEqual(both["usage"]["completion_tokens"], 80)

    def test_tokens_are_a_prompt(self):
        self.assertEqual(json.loads(self.complete(prompt=[0, 1, 500]))["usage"]["prompt_tokens"], 3)
        self.assertEqual(len(json.loads(self.complete(prompt=[[0, 1], [0, 2, 3]]))["choices"]), 2)

    def test_json_is_read_whatever_its_type_is_called(self):
        body = json.dumps({**LONG, "max_tokens": 5}) + " " * 20_000
        for kind in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
            for sent in (body, iter([body.encode()])):  # with a length, or in chunks
                with self.subTest(kind=kind, sent=type(sent)):
                    status, answer = self.ask("POST", "/v1/completions", sent, {"Content-Type": kind})
                    self.assertEqual(status, 200, answer)
                    self.assertEqual(json.loads(answer)["usage"]["completion_tokens"], 5)

    def test_no_range_is_cut_out_of_an_answer(self):
        for streams in (False, True):
            wishes = {**LONG, "max_tokens": 5, "stream": streams}
            status, answer = self.ask("POST", "/v1/completions", wishes, {"Range": "bytes=0-3"})
            self.assertEqual(status, 200)
            self.assertIn('"finish_reason":"length"', answer)

    def test_a_seed_repeats_an_answer(self):
        wishes = {"temperature": 2, "seed": 7, "max_tokens": 40}
        texts = {json.loads(self.complete(**wishes))["choices"][0]["text"] for _ in range(3)}
        self.assertEqual(len(texts), 1)
        self.assertNotIn(json.loads(self.complete(**{**wishes, "seed": 8}))["choices"][0]["text"], texts)

    def test_health_models_and_page(self):
        self.assertEqual(self.ask("GET", "/health"), (200, '{"status":"ok"}'))
        self.assertEqual(json.loads(self.ask("GET", "/v1/models")[1])["data"][0]["id"], "small")
        self.assertIn("<title>pagedkv</title>", self.ask("GET", "/")[1])

    def test_the_page_reads_names_that_there_are(self):
        page = self.ask("GET", "/")[1]
        values = self.metrics()
        for name, label in re.findall(r'values\["(\w+)(?:/(\w+))?"\]', page):
            self.assertIn((name, label), values)
        self.assertIn(("pool_blocks", "evictable"), values)
        self.assertIn(("step_microseconds_total", "cache"), values)


class Refusals(Served):
    options = ["--blocks", "8"]

    def check(self, path, body, status, parameter):
        got, answer = self.ask("POST", path, body)
        self.assertEqual(got, status, answer)
        error = json.loads(answer)["error"]
        self.assertEqual(error["param"], parameter)
        self.assertNotEqual(error["message"], "")

    def test_what_is_no_json(self):
        for body in ["", "{", "[]", "null", '"text"', '{"prompt": "a",}', '{"prompt": "\xff"}', "[" * 100_000]:
            with self.subTest(body=body[:20]):
                self.check("/v1/completions", body, 400, None)

    def test_arrays_in_arrays(self):
        deep = "[" * 20_000 + "]" * 20_000
        for path, body in [
            ("/v1/completions", f'{{"prompt": {deep}}}'), ("/v1/completions", f'{{"prompt": "a", "stop": {deep}}}'),
            ("/v1/completions", f'{{"prompt": "a", "logit_bias": {deep}}}'),
            ("/v1/chat/completions", f'{{"messages": [{{"role": "user", "content": [{{"type": {deep}}}]}}]}}'),
        ]:
            with self.subTest(body=body[:40]):
                self.check(path, body, 400, None)
        self.complete(prompt='\\"' + "[" * 70, max_tokens=1)  # a text is no array

    def test_many_objects(self):
        self.check("/v1/chat/completions", '{"messages": [' + "{}," * 500_000 + "{}]}", 400, "role")

    def test_messages_quote_little(self):
        for body in ({"model": "m" * 100_000}, '{"prompt": "' + "\u00e9" * 100_000, {"messages": [{"role": "r" * 100_000}]}):
            status, answer = self.ask("POST", "/v1/chat/completions", body if isinstance(body, dict) else body.encode())
            self.assertIn(status, (400, 404))
            self.assertLess(len(json.loads(answer)["error"]["message"]), 1001)

    def test_members(self):
        for parameter, value in [
            ("prompt", None), ("prompt", []), ("prompt", {}), ("prompt", [1.5]), ("prompt", [-1]), ("prompt", ["a", 1]),
            ("prompt", [2**40]), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "ten"), ("max_tokens", 2**64),
            ("n", 0), ("n", 129), ("temperature", -1), ("temperature", "hot"), ("stream", 1), ("stop", ""),
            ("stop", ["a"] * 5), ("stop", 7), ("seed", "s"), ("stream_options", 1), ("logprobs", 3), ("top_p", 0.5),
            ("echo", True), ("response_format", {"type": "json_object"}), ("prompt", [[]]), ("tool_choice", "required"),
            ("function_call", {"name": "f"}), ("modalities", ["text", "audio"]), ("audio", {"voice": "any"}),
            ("reasoning_effort", "high"), ("verbosity", "low"), ("web_search_options", {}),
        ]:
            with self.subTest(parameter=parameter, value=value):
                self.check("/v1/completions", {"prompt": "a", parameter: value}, 400, parameter)
        for messages in [None, [], "Hi", [1], [{}], [{"role": "user"}], [{"role": "user", "content": 1}],
                         [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "assistant", "content": "Hi"}]]:
            with self.subTest(messages=messages):
                got, answer = self.ask("POST", "/v1/chat/completions", {"messages": messages})
                self.assertEqual(got, 400, answer)
        self.check("/v1/completions", {"prompt": [2048]}, 400, None)  # behind the vocabulary
        self.check("/v1/completions", {"prompt": "a", "model": "large"}, 404, "model")

    def test_what_is_longer_than_the_pool_or_the_context(self):
        self.check("/v1/completions", {"prompt": [5] * 100, "max_tokens": 29}, 400, "prompt")
        self.check("/v1/completions", {"prompt": [5] * 20, "max_tokens": 30, "n": 4}, 400, "prompt")
        self.check("/v1/completions", {"prompt": [5] * 600}, 400, "prompt")
        self.check("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 300}]}, 400, "messages")
        self.assertEqual(json.loads(self.complete(prompt=[5] * 100, max_tokens=28))["usage"]["prompt_tokens"], 100)
        self.assertEqual(self.ask("POST", "/v1/chat/completions", {"messages": QUESTION})[0], 200)  # as long as there is room

    def test_what_is_a_form_or_too_long(self):
        form = '--x\r\nContent-Disposition: form-data; name="prompt"\r\n\r\na\r\n--x--\r\n'
        status, answer = self.ask("POST", "/v1/completions", form, {"Content-Type": "multipart/form-data; boundary=x"})
        self.assertEqual(status, 415, answer)
        self.assertIn("JSON", json.loads(answer)["error"]["message"])
        status, answer = self.ask("POST", "/v1/completions", iter([b" " * 1_000_000] * 17))
        self.assertEqual(status, 413, answer)
        self.assertIn("16 MiB", json.loads(answer)["error"]["message"])

    def test_what_is_sent_to_no_known_path(self):
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        for method in ("POST", "PUT", "PATCH"):
            with self.subTest(method=method):
                status, answer = self.ask(method, "/v1/completion", json.dumps({"prompt": "a" * 10_000}), form)
                self.assertEqual((status, json.loads(answer)["error"]["message"]), (404, f"there is no {method} /v1/completion"))
                self.assertEqual(self.ask(method, "/" + "x" * 8_000, "{}")[0], 404)
                self.assertEqual(self.ask(method, "/v1/completion", iter([b" " * 1_000_000] * 17))[0], 413)

    def test_a_packed_body_is_read_as_far_as_it_may_be_long(self):
        packer = zlib.compressobj(wbits=31)
        body = packer.compress(bytes(17 << 20)) + packer.flush(zlib.Z_SYNC_FLUSH)
        with self.connect() as connection:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: 1000000\r\n\r\n" + body)
            self.assertEqual(connection.recv(1 << 16).split()[1], b"413")  # without the rest of what was announced

    def test_what_is_no_http(self):
        for request, status in [
            (b"GARBAGE\r\n\r\n", b"400"),
            (b"GET / HTTP/9\r\n\r\n", b"400"),
            (b"POST /v1/completions HTTP/1.1\r\nContent-Length: 17000000\r\n\r\n" + bytes(17_000_000), b"413"),
            (b"GET /" + b"x" * 10_000 + b" HTTP/1.1\r\n\r\n", b"414"),
            (b"POST /nothing HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}", b"404"),
            (b"GET /health HTTP/1.1\r\nX: " + b"x" * 10_000 + b"\r\n\r\n", b"400"),
            (b"GET /metrics HTTP/1.1\r\nRange: bytes=-" + b",-" * 4_000 + b"\r\n\r\n", b"206"),
            (b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
            (b"POST /v1/completions HTTP/1.1\r\nContent-Length: none\r\n\r\n", b"400"),
        ]:
            with self.subTest(request=request[:40]), self.connect() as connection:
                connection.sendall(request)
                answer = connection.recv(1 << 16)
                self.assertEqual(answer.split()[1], status)
        self.assertEqual(self.ask("GET", "/health")[0], 200)


class Departures(Served):
    options = ["--blocks", "256", "--rows", "2"]

    def test_answers_end_with_their_connection(self):
        streams = {**LONG, "stream": True, "n": 2, "max_tokens": 400}
        requests = [(streams, 400), (streams, 0), ({**streams, "stream": False}, 0)]
        for depart, (body, read) in itertools.product((self.leave, self.time_out), requests):
            with self.subTest(depart=depart.__name__, stream=body["stream"], read=read):
                before = self.metrics_at_rest()
                depart("/v1/completions", body, read)
                waiting = json.loads(self.complete(max_tokens=4))["usage"]  # behind it
                self.assertEqual(waiting["completion_tokens"], 4)
                after = self.metrics_at_rest()
                self.assertEqual(after["ended_requests_total", "finished"], before["ended_requests_total", "finished"] + 1)

    def test_the_server_ends_with_answers_under_way(self):
        connection = http.client.HTTPConnection(self.address)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/completions", json.dumps({**LONG, "max_tokens": 400, "stream": True, "n": 2}))
        answer = connection.getresponse()
        answer.readline()  # the stop in the clean-up finds the rest

    def test_a_slow_body_does_not_hold_the_end(self):
        with self.connect() as connection:
            connection.settimeout(1)
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n")
            self.metrics()
            self.server.send_signal(signal.SIGTERM)
            for _ in range(100):
                try:
                    connection.sendall(b" ")
                    if connection.recv(4096) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                self.fail("the server reads on")


@unittest.skipIf(IS_SANITIZED, "a sanitizer ends a process without memory itself")
class Failure(Served):
    # Products of several threads take memory in OpenBLAS, which ends the process where there is none.
    environment = {"OPENBLAS_NUM_THREADS": "1"}

    def stop(self):
        _, errors = self.server.communicate()
        self.assertEqual((self.server.returncode, errors), (1, "the engine failed: std::bad_alloc\n"))

    def test_a_server_without_memory_tells_its_clients_and_ends(self):
        self.complete(prompt=[5, 6, 7], max_tokens=4)  # threads of connections have what they need
        status = pathlib.Path(f"/proc/{self.server.pid}/status").read_text()
        most = int(re.search(r"VmData:\s+(\d+) kB", status).group(1)) * 1024 + (1 << 20)
        resource.prlimit(self.server.pid, resource.RLIMIT_DATA, (most, most))
        status, body = self.ask("POST", "/v1/completions", {"prompt": [5] * 450})  # some 5 MB of numbers
        self.assertEqual(status, 500)
        self.assertEqual(json.loads(body)["error"]["message"], "the engine failed: std::bad_alloc")


class Restarts(Served):
    """The second answer of a prompt is that of a server that was started behind the first."""

    def check(self):
        prompt = LONG["prompt"] + "n. A person who enjoys exploring the details of programmable systems"
        first = json.loads(self.complete(prompt=prompt, max_tokens=24))
        self.doCleanups()  # ends the server
        self.setUp()
        again = json.loads(self.complete(prompt=prompt, max_tokens=24))
        self.assertEqual(again["choices"], first["choices"])
        usage = again["usage"]
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], (usage["prompt_tokens"] - 1) // 16 * 16)
        self.assertGreater(usage["prompt_tokens"], 17)
        values = self.metrics_at_rest()
        self.assertEqual(values["tier_hit_blocks_total", self.tier], (usage["prompt_tokens"] - 1) // 16)
        self.assertGreater(values["tier_records", "host"], 0)


class FileBehind(Restarts):
    """A server finds in its file what the one before it cached."""

    tier = "file_tier"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.options = ["--blocks", "256", "--host-blocks", "64", "--file", f"{folder.name}/blocks", "--file-size", "64MB"]

    def test_a_restart_answers_from_the_file(self):
        self.check()


@unittest.skipUnless(STORE, "no server of Valkey or Redis is here: scripts/install takes one from Debian")
class StoreBehind(Restarts):
    """A server finds in a store what another process cached."""

    tier = "remote_tier"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        socket_path = f"{folder.name}/store"
        options = ["--port", "0", "--unixsocket", socket_path, "--dir", folder.name, "--save", "", "--appendonly", "no"]
        store = subprocess.Popen([STORE, *options], stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(store.stdout.close)
        cls.addClassCleanup(store.wait)
        cls.addClassCleanup(store.terminate)
        next(line for line in store.stdout if "eady to accept connections" in line)
        cls.options = ["--blocks", "256", "--host-blocks", "64", "--remote", f"unix://{socket_path}"]

    def test_another_server_answers_from_the_store(self):
        self.check()


class Crowd(Served):
    """A third of the clients leave early or run out of time; the pool is too small for all that run at once."""

    options = ["--blocks", "100"]

    def setUp(self):
        super().setUp()
        self.expected = json.loads(self.complete(max_tokens=24))["choices"][0]["text"]

    def memory(self):
        """Bytes that the server keeps in memory."""
        return int(pathlib.Path(f"/proc/{self.server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    def visit(self, number):
        body = {**LONG, "prompt": f"<|user|>{number}<|end|>" + LONG["prompt"], "max_tokens": 24}
        if number % 3 == 2:
            depart = self.time_out if number % 2 else self.leave
            depart("/v1/completions", {**body, "stream": number % 4 < 2}, read=300 if number % 8 < 2 else 0)
            return None
        status, answer = self.ask("POST", "/v1/completions", body if number % 2 else LONG | {"max_tokens": 24})
        self.assertEqual(status, 200, answer)
        choice = json.loads(answer)["choices"][0]
        if number % 2 == 0:
            self.assertEqual(choice["text"], self.expected)
        return choice["finish_reason"]

    def visits(self, numbers):
        with concurrent.futures.ThreadPoolExecutor(64) as clients:
            return list(clients.map(self.visit, numbers))

    def test_clients_that_leave_or_time_out_disturb_no_other(self):
        reasons = self.visits(range(64))
        self.assertEqual(reasons.count(None), 21)
        values = self.metrics_at_rest()
        self.assertEqual(values["ended_requests_total", "failed"], 0)

    @unittest.skipUnless(LONG_CROWD, "takes minutes: PAGEDKV_SERVE_REQUESTS=10000 runs it")
    def test_memory_stays_flat(self):
        first = LONG_CROWD // 10  # they fill the records that are kept, and the allocator's arenas
        self.visits(range(first))
        before = self.memory()
        self.visits(range(first, LONG_CROWD))
        after = self.memory()
        print(f"# {before >> 10} KiB behind {first} requests, {after >> 10} KiB behind {LONG_CROWD}")
        self.assertLess(after - before, before // 50)
        self.metrics_at_rest()

    @unittest.skipUnless(openai, "openai is not here: scripts/install takes it from PyPI")
    def test_openai_clients(self):
        def visit(number):
            asked = [{"role": "user", "content": f"What is a {number}?"}]
            wishes = {"model": "small", "messages": asked, "temperature": 0, "max_tokens": 24}
            if number % 6 == 5:
                with self.paused(), self.assertRaises(openai.APITimeoutError):
                    client.chat.completions.create(**wishes, timeout=0.01)
                return None
            text = ""
            with client.chat.completions.create(**wishes, stream=True) as stream:
                for chunk in stream:
                    text += chunk.choices[0].delta.content or ""
                    if number % 3 == 2:
                        return None
            return text

        with openai.OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0) as client:
            with concurrent.futures.ThreadPoolExecutor(64) as clients:
                texts = list(clients.map(visit, range(64)))
        self.assertEqual(texts.count(None), 21)
        self.assertNotIn("", texts)
        self.metrics_at_rest()


@unittest.skipUnless(openai, "openai is not here: scripts/install takes it from PyPI")
class OpenAi(Served):
    def setUp(self):
        super().setUp()
        self.client = openai.OpenAI(base_url=f"http://{self.address}/v1", api_key="none", max_retries=0)
        self.addCleanup(self.client.close)

    def test_completions(self):
        made = self.client.completions.create(model="small", **LONG)
        self.assertEqual(made.usage.completion_tokens, 120)
        streamed = self.client.completions.create(model="small", **LONG, stream=True, stream_options={"include_usage": True})
        chunks = list(streamed)
        self.assertTrue(all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in chunks[:-1]))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks[:-1]), made.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 120)
        self.assertEqual([model.id for model in self.client.models.list()], ["small"])

    def test_a_conversation_finds_its_history(self):
        talk = list(QUESTION)
        cached = []
        for question in ("Define foo.", "kluge", "What is a bug?"):
            made = self.client.chat.completions.create(model="small", messages=talk, temperature=0, max_tokens=40)
            self.assertEqual(made.choices[0].message.role, "assistant")
            cached.append(made.usage.prompt_tokens_details.cached_tokens)
            talk += [made.choices[0].message, {"role": "user", "content": question}]
        self.assertEqual(cached[0], 0)
        self.assertLess(cached[1], cached[2])
        self.assertGreater(cached[1], 0)

    def test_instructions_precede_the_question(self):
        made = self.client.chat.completions.create(
            model="small", messages=[{"role": "system", "content": "Be brief."}, *QUESTION], temperature=0, max_tokens=8)
        merged = self.client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Be brief.\n\nWhat is a hacker?"}], temperature=0, max_tokens=8)
        self.assertEqual(made.choices[0].message.content, merged.choices[0].message.content)

    def test_refusals_are_its_exceptions(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="large", prompt="a")
        with self.assertRaises(openai.BadRequestError) as raised:
            self.client.completions.create(model="small", prompt="a", max_tokens=1000)
        self.assertEqual(raised.exception.code, "context_length_exceeded")


@unittest.skipUnless(shutil.which("curl"), "curl is not here: scripts/install takes it from Debian")
class Curl(Served):
    def curl(self, path, *options):
        done = subprocess.run(["curl", "-sS", "--fail-with-body", f"http://{self.address}{path}", *options], capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_answers_and_refusals(self):
        status, body = self.curl("/v1/chat/completions", "--json", json.dumps({"messages": QUESTION, "max_tokens": 5}))
        self.assertEqual(status, 0, body)
        self.assertEqual(json.loads(body)["usage"]["completion_tokens"], 5)
        status, body = self.curl("/v1/completions", "-N", "--json", json.dumps({**LONG, "stream": True}))
        self.assertTrue(body.endswith("data: [DONE]\n\n"))
        self.assertEqual(self.curl("/health")[0], 0)
        self.assertIn("# TYPE pagedkv_pool_blocks gauge", self.curl("/metrics")[1])
        status, body = self.curl("/v1/completions", "--json", "{")
        self.assertEqual(status, 22)
        self.assertIn("no JSON", body)


@unittest.skipUnless(shutil.which("chromium"), "chromium is not here: scripts/install browser takes it from Debian")
class Browser(Served):
    options = ["--blocks", "256", "--host-blocks", "64"]

    def test_the_page_shows_the_pool(self):
        self.complete(max_tokens=40)  # two blocks or more
        values = self.metrics_at_rest()
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000", "--dump-dom"]
        done = subprocess.run(["chromium", *options, f"http://{self.address}/"], capture_output=True, text=True)
        self.assertIn('<p id="status">live</p>', done.stdout)
        for state in ("in use", "evictable", "free"):
            count = values["pool_blocks", state.replace(" ", "_")]
            self.assertRegex(done.stdout, f"blocks {state}</td><td>{count}</td>")
        self.assertRegex(done.stdout, f"tier host: blocks</td><td>{values['tier_records', 'host']} of 64 ")


@unittest.skipUnless(PROGRAM.exists(), "libcpp-httplib-dev is not here")
class Start(unittest.TestCase):
    def test_a_signal_ends_a_server_that_has_hardly_begun(self):
        for _ in range(5):
            server = subprocess.Popen([PROGRAM, "--model", MODEL, "--port", "0"], stdout=subprocess.PIPE, text=True)
            server.stdout.readline()
            server.send_signal(signal.SIGTERM)
            server.communicate()
            self.assertEqual(server.returncode, 0)

    def test_an_address_of_ipv6_is_one_of_a_url(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("there is no IPv6 here")
        with subprocess.Popen([PROGRAM, "--model", MODEL, "--port", "0", "--host", "::1"], stdout=subprocess.PIPE, text=True) as server:
            line = server.stdout.readline()
            server.send_signal(signal.SIGTERM)
        self.assertRegex(line, r"^model at http://\[::1\]:\d+$")

    @unittest.skipIf(IS_SANITIZED, "a sanitizer needs more than the limit for itself")
    def test_threads_that_cannot_be_had_are_named(self):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        command = [PROGRAM, "--model", MODEL, "--port", "0", "--connections", "65535"]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("65535 threads", done.stderr)

    def test_what_cannot_be_served_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            refused = [(["--port", port], port), (["--port", "70000"], "--port"), (["--blocks", "0"], "--blocks")]
            refused += [(["--rows", "4611686018427387905"], "--rows"), (["--connections", "1000000"], "--connections")]
            refused += [(["--file", "blocks"], "host memory"), (["--file-size", "1MB"], "--file"), (["--branches", "2"], "--drafts")]
            for options, name in [*refused, (["--overlap", "--drafts", "2"], "--drafts")]:
                done = subprocess.run([PROGRAM, "--model", MODEL, *options], capture_output=True, text=True)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(name, done.stderr)
        done = subprocess.run([PROGRAM, "--model", "/nowhere"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("config.json", done.stderr)


if __name__ == "__main__":
    unittest.main()
