"""SGLang's prefix cache over its tree in Rust, its allocator and its table of rows, unmodified.

Usage: sglang_manager.py TRACE NUM_REQUESTS, with SGLang's wheel on the path. Prints JSON.
"""

import gc
import itertools
import json
import logging
import sys
from array import array

import workload

logging.disable(logging.WARNING)

import sglang  # noqa: E402
import torch  # noqa: E402
from sglang.srt.managers.schedule_batch import ReqKvInfo  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams  # noqa: E402
from sglang.srt.mem_cache.cache_init_params import CacheInitParams  # noqa: E402
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool  # noqa: E402
from sglang.srt.mem_cache.radix_cache import RadixKey  # noqa: E402
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType  # noqa: E402
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache  # noqa: E402

NUMBERS = itertools.count()


class Storage:
    """Its keys and values would be on a device."""


class Request:
    """The members that its caches read and write."""

    extra_key = cache_salt = session = session_id = kv_rotation_base = None
    priority = 0
    skip_radix_cache_insert = False

    def __init__(self, tokens):
        self.rid = str(next(NUMBERS))
        self.origin_input_ids = self.full_untruncated_fill_ids = tokens
        self.output_ids = array("q")
        self.kv = ReqKvInfo()
        self.last_node = self.lock = None
        self.is_finished = False

    def finished(self):
        return self.is_finished


def number(value):
    return torch.tensor([value], dtype=torch.int64)


class Manager:
    def __init__(self, block_size, num_blocks, num_rows, longest):
        self.block_size = block_size
        self.rows = ReqToTokenPool(size=num_rows + 1, max_context_len=longest + block_size, device="cpu",
                                   enable_memory_saver=False)
        self.allocator = PagedTokenToKVPoolAllocator(num_blocks * block_size, block_size, torch.float16, "cpu", Storage(),
                                                     need_sort=False)
        parts = CacheInitParams(disable=False, req_to_token_pool=self.rows, token_to_kv_pool_allocator=self.allocator,
                                page_size=block_size)
        parts.tree_components = (ComponentType.FULL,)
        parts.tree_core_backend = "rust"
        self.tree = UnifiedRadixCache(parts)
        gc.collect()
        gc.freeze()

    def make_room(self, num_tokens):
        missing = num_tokens - self.allocator.available_size()
        if missing > 0:
            self.tree.evict_for_alloc(EvictParams(num_tokens=missing))

    def prepare(self, tokens):
        self.request = Request(array("q", tokens))

    def create(self):
        request = self.request
        length = len(request.origin_input_ids)
        # Its scheduler leaves the last token to be computed.
        match = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(request.origin_input_ids, limit=length - 1), req=request))
        num_hits, node = match.device_prefix_len, match.last_device_node
        request.last_node, request.lock = node, self.tree.lock(node)
        self.make_room(length - num_hits + self.block_size)
        prefix = self.tree.path_device_indices(node)[:num_hits]
        last = number(int(prefix[-1]) if num_hits else -1)
        added = self.allocator.alloc_extend(number(num_hits), number(num_hits), number(length), number(length), last,
                                            length - num_hits)
        if added is None:
            raise RuntimeError("a request does not fit")
        self.rows.alloc([request])
        self.row = request.kv.req_pool_idx
        self.rows.write((self.row, slice(0, num_hits)), prefix.to(torch.int32))
        self.rows.write((self.row, slice(num_hits, length)), added.to(torch.int32))
        request.kv.cache_protected_len = num_hits
        self.set_length(length)
        self.tree.checkpoint(request, up_to=length)
        return num_hits

    def set_length(self, length):
        self.length = length
        self.request.kv.kv_allocated_len = self.request.kv.kv_committed_len = length

    def append(self, token):
        self.request.output_ids.append(token)
        self.make_room(self.block_size)
        last = self.rows.req_to_token[self.row, self.length - 1].to(torch.int64).reshape(1)
        longer = number(self.length + 1)
        added = self.allocator.alloc_decode(longer, longer, last)
        self.rows.write((self.row, self.length), added.to(torch.int32)[0])
        self.set_length(self.length + 1)

    def release(self):
        request = self.request
        request.full_untruncated_fill_ids = request.origin_input_ids + request.output_ids
        request.is_finished = True
        self.tree.checkpoint(request, up_to=self.length)
        self.tree.free_kv_row(request.kv, [(request.kv.cache_protected_len, self.length)])
        self.tree.unlock(request.lock)
        self.tree.on_release(request, checkpointed=True)
        self.rows.free(request)
        request.kv.mark_kv_released()

    def publish(self, tokens):
        whole = len(tokens) // self.block_size * self.block_size
        self.tree.insert(InsertParams(key=RadixKey(array("q", tokens)), value=self.allocator.alloc(whole)))

    def looker_up(self, tokens):
        key = RadixKey(array("q", tokens), limit=len(tokens))

        def look_up():
            match = self.tree.match_prefix(MatchPrefixParams(key=key, req=None))
            self.tree.unlock(self.tree.lock(match.last_device_node))

        return look_up

    def stepper(self, prompts):
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int64)
        zeros = torch.zeros_like(lengths)
        slots = self.allocator.alloc_extend(zeros, zeros, lengths, lengths, zeros - 1, int(lengths.sum()))
        rows = torch.arange(1, len(prompts) + 1)
        for row, of_row in zip(rows, torch.split(slots, lengths.tolist())):
            self.rows.write((int(row), slice(0, len(of_row))), of_row.to(torch.int32))

        def step():
            nonlocal lengths
            self.make_room(len(prompts) * self.block_size)
            last = self.rows.req_to_token[rows, lengths - 1].to(torch.int64)
            places, lengths = lengths, lengths + 1
            self.rows.write((rows, places), self.allocator.alloc_decode(lengths, lengths, last).to(torch.int32))

        return step


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = workload.measure(Manager, workload.read_requests(sys.argv[1], int(sys.argv[2])))
    print(json.dumps({"version": sglang.__version__} | found))
