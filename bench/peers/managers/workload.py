"""The same work for every manager of blocks: requests of a trace, and operations alone. managers_bench.cpp has its like."""

import json
import time

TRACE_BLOCK = 512
NUM_TOKEN_VALUES = 1_000_003  # prime: blocks of different ids differ
MAX_STEPS = 32
LONG_PROMPT = 131_072
NUM_ROWS, ROW_TOKENS, ROW_STEPS = 1_024, 8_192, 64
POOL, CHAIN = 100_000, 1_000


def read_requests(path, limit):
    """(prompt's length, output's length, ids of blocks) of the first requests."""
    with open(path) as lines:
        rows = [json.loads(line) for _, line in zip(range(limit), lines)]
    return [(row["input_length"], row["output_length"], row["hash_ids"]) for row in rows]


def prompt_of(request):
    length, _, ids = request
    tokens = [(each * TRACE_BLOCK + i) % NUM_TOKEN_VALUES for each in ids for i in range(TRACE_BLOCK)]
    return tokens[:length]


def chain_of(number, length):
    return [(number * 7_919_001 + i * 13) % NUM_TOKEN_VALUES for i in range(length)]


def seconds_of(call):
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def serve_requests(make, requests, block_size):
    """A pool of a tenth of the distinct blocks; one request at a time."""
    distinct = len({each for _, _, ids in requests for each in ids})
    longest = max(length + MAX_STEPS for length, _, _ in requests)
    manager = make(block_size, distinct * TRACE_BLOCK // block_size // 10, 1, longest)
    whole = decode = 0.0
    steps, hits = 0, []
    for request in requests:
        prompt = prompt_of(request)
        manager.prepare(prompt)
        start = time.perf_counter()
        hits.append(manager.create())
        middle = time.perf_counter()
        num_steps = min(MAX_STEPS, request[1])
        for step in range(num_steps):
            manager.append(step)
        after = time.perf_counter()
        manager.release()
        whole += time.perf_counter() - start
        decode += after - middle
        steps += num_steps
    return {"request_us": whole / len(requests) * 1e6, "step_us": decode / steps * 1e6, "hits": hits}


def look_up_long_prompt(make, block_size):
    """Microseconds to find a cached prompt, hold it and let it go."""
    manager = make(block_size, 4 * LONG_PROMPT // block_size, 2, LONG_PROMPT + 2 * TRACE_BLOCK)
    prompt = chain_of(1, LONG_PROMPT + 1)
    manager.publish(prompt)
    return min(seconds_of(manager.looker_up(prompt)) for _ in range(20)) * 1e6


def replace_blocks(make, block_size):
    """Microseconds to evict a hundredth of a full pool, allocate as much and publish it."""
    manager = make(block_size, POOL, 1, CHAIN * block_size + 1)
    times = []
    for number in range(POOL // CHAIN + 20):
        tokens = chain_of(number, CHAIN * block_size)
        manager.prepare(tokens)
        start = time.perf_counter()
        manager.create()
        times.append(time.perf_counter() - start)
        manager.release()
    return min(times[-20:]) * 1e6


def step_of_batch(make):
    """Microseconds until a batch has a token more in each row, and its tables are right."""
    block_size = 16
    prompts = [chain_of(row, ROW_TOKENS - row % block_size) for row in range(NUM_ROWS)]
    manager = make(block_size, NUM_ROWS * (ROW_TOKENS + 1_024) // block_size, NUM_ROWS, ROW_TOKENS + 1_024)
    step = manager.stepper(prompts)
    return min(seconds_of(step) for _ in range(ROW_STEPS)) * 1e6


def measure(make, requests):
    found = {f"requests_{size}": serve_requests(make, requests, size) for size in (16, 512)}
    found |= {f"look_up_{size}": look_up_long_prompt(make, size) for size in (16, 512)}
    found |= {f"replace_{size}": replace_blocks(make, size) for size in (16, 512)}
    return found | {"batch_step": step_of_batch(make)}
