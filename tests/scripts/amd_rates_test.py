"""What scripts/amd-check calculates from assembly."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(os.environ["PAGEDKV_SOURCE_ROOT"]) / "scripts" / "lib"))
import amd_rates  # noqa: E402

# A loop that loads 16 bytes ahead and adds those that it loaded before, between a load and a store of its own.
LOOP = """
kernel: ; @kernel
	global_load_dword v9, v[0:1], off
.LBB0_1:
	global_load_dwordx4 v[4:7], v[0:1], off offset:16
	v_add_f32_e32 v1, v2, v3
	v_exp_f32_e32 v1, v1
	s_waitcnt vmcnt(1)
	ds_read_b128 v[4:7], v1
	s_cbranch_scc1 .LBB0_1
	global_store_short v[0:1], v9, off
	s_endpgm
	.section .rodata
other:
	v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]
	s_wait_loadcnt 0x0
	.section .rodata
"""


class Rates(unittest.TestCase):
    def test_a_steady_loop_is_found_and_counted(self):
        code, loops = amd_rates.parse(LOOP)["kernel"]
        found = amd_rates.rates("kernel", code, loops, 8, amd_rates.MI300X)
        self.assertEqual(found.instructions, {"load": 1, "vector": 1, "slow": 1, "wait": 1, "lds": 1, "scalar": 1})
        self.assertEqual((found.loaded, found.stored), (16 * 64, 0))
        self.assertEqual(found.in_flight, 2 * 16 * 64)  # one load is waited for while the next one is under way
        self.assertEqual(found.issue, 1)

    def test_few_bytes_in_flight_limit_the_rate(self):
        device = amd_rates.MI300X
        code, loops = amd_rates.parse(LOOP)["kernel"]
        found = amd_rates.rates("kernel", code, loops, 1, device)
        waves = device.processors * device.simds
        self.assertAlmostEqual(found.flight, waves * 2048 / (device.bytes_per_second * device.latency))
        self.assertEqual(found.share, found.flight)

    def test_units_and_waits_of_each_target(self):
        code, loops = amd_rates.parse(LOOP)["other"]
        self.assertEqual([(i.unit, i.left) for i in code], [("matrix", -1), ("wait", 0)])
        self.assertEqual(loops, [])
        self.assertEqual(amd_rates.decode("\tglobal_load_b128 v[0:3], v[4:5], off").bytes, 16)
        self.assertEqual(amd_rates.decode("\tv_mul_lo_u32 v1, v2, v3").unit, "slow")

    def test_a_decode_kernel_reads_one_tile_a_turn(self):
        self.assertEqual(amd_rates.bytes_of_tile("attend_kernel<int8, attention_numbers, 128, 1, m<u>, 4, 4>"), 2 * 16 * 128)
        self.assertEqual(amd_rates.bytes_of_tile("attend_kernel<bfloat16, number_set<a, b>, 64, 1, m<u>, 4, 4>"), 2 * 16 * 64 * 2)
        self.assertIsNone(amd_rates.bytes_of_tile("copy_blocks_kernel<vector<unsigned int, 4> >"))

    def test_only_kernels_that_memory_limits_are_listed(self):
        self.assertTrue(amd_rates.BY_MEMORY.match("append_kernel<bfloat16, float16, 8>"))
        self.assertFalse(amd_rates.BY_MEMORY.match("append_kernel<bfloat16, float16, 1>"))
        self.assertFalse(amd_rates.BY_MEMORY.match("copy_blocks_kernel<std::byte>"))
        self.assertFalse(amd_rates.BY_MEMORY.match("merge_kernel<attention_numbers, 64, true>"))


if __name__ == "__main__":
    unittest.main()
