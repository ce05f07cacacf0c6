"""vLLM's KVCacheManager, unmodified.

Usage: vllm_manager.py TRACE NUM_REQUESTS, with vLLM's wheel on the path. Prints JSON.
"""

import gc
import itertools
import json
import os
import sys

import workload

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.request import Request  # noqa: E402
from vllm.v1.worker.block_table import BlockTable  # noqa: E402

NUMBERS = itertools.count()
SAMPLING = SamplingParams(max_tokens=1 << 20)
HASH = get_hash_fn_by_name("xxhash")  # the fastest that it has
kv_cache_utils.init_none_hash(HASH)


class Manager:
    def __init__(self, block_size, num_blocks, num_rows, longest):
        self.block_size, self.num_rows, self.longest = block_size, num_rows, longest
        layer = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float16)
        # One block is its own.
        config = KVCacheConfig(num_blocks=num_blocks + 1, kv_cache_tensors=[],
                               kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)])
        self.manager = KVCacheManager(kv_cache_config=config, max_model_len=1 << 20, scheduler_block_size=block_size,
                                      hash_block_size=block_size, enable_caching=True)
        self.hasher = kv_cache_utils.get_request_block_hasher(block_size, HASH)
        gc.collect()
        gc.freeze()  # as its engine does when it has started

    def make(self, tokens):
        made = Request(request_id=str(next(NUMBERS)), prompt_token_ids=tokens, sampling_params=SAMPLING,
                       pooling_params=None, block_hasher=None)
        made._block_hasher = self.hasher
        return made

    def prepare(self, tokens):
        self.request = self.make(tokens)

    def create(self):
        return self.admit(self.request)

    def admit(self, request):
        request.update_block_hashes()
        blocks, num_hits, *_ = self.manager.get_computed_blocks(request)
        length = len(request.prompt_token_ids)
        if self.manager.allocate_slots(request, length - num_hits, num_hits, blocks) is None:
            raise RuntimeError("a request does not fit")
        request.num_computed_tokens = length
        return num_hits

    def append(self, token):
        self.request.append_output_token_ids(token)
        if self.manager.allocate_slots(self.request, 1) is None:
            raise RuntimeError("a token does not fit")
        self.request.num_computed_tokens += 1

    def release(self):
        self.manager.free(self.request)

    def publish(self, tokens):
        self.prepare(tokens)
        self.create()
        self.release()

    def looker_up(self, tokens):
        request = self.make(tokens)

        def look_up():
            self.admit(request)
            self.manager.free(request)

        return look_up

    def stepper(self, prompts):
        table = BlockTable(self.block_size, self.num_rows, self.longest // self.block_size, 8_192, False,
                           torch.device("cpu"), 1)
        requests = [self.make(prompt) for prompt in prompts]
        for row, request in enumerate(requests):
            self.admit(request)
            table.add_row(self.manager.get_block_ids(request.request_id)[0], row)
        gc.collect()
        gc.freeze()

        def step():
            for row, request in enumerate(requests):
                request.append_output_token_ids(7)
                added = self.manager.allocate_slots(request, 1).get_block_ids(allow_none=True)
                request.num_computed_tokens += 1
                if added is not None:
                    table.append_row(added[0], row)

        return step


if __name__ == "__main__":
    found = workload.measure(Manager, workload.read_requests(sys.argv[1], int(sys.argv[2])))
    print(json.dumps({"version": vllm.__version__} | found))
