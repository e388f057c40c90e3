"""Tests what is read of a GPU's programs, and that kept ones compute in the 16 bits that their presets ask for."""

import re

import pytest
import tensorflow as tf

from common.config import benchmarks
from gnmt import attention
from systems.compile import hlo, series
from timetotrain.machines import presets

PROGRAM = """HloModule m, replica_count=8

%inner (p: f16[8,8]) -> f16[8,8] {
  %p.9 = f16[8,8]{1,0} parameter(0)
  ROOT %d = f16[8,8]{1,0} dot(%p.9, %p.9), lhs_contracting_dims={1}, metadata={op_name="net/attention/MatMul"}
}

%body (s: (s32[], f16[16])) -> (s32[], f16[16]) {
  %s = (s32[], f16[8,8]{1,0}) parameter(0)
  %x = f16[8,8]{1,0} get-tuple-element(%s), index=1
  %v = f32[8,8]{1,0} convert(%x)
  %y = f32[8,8]{1,0} custom-call(%x, %v), custom_call_target="__cublas$lt$matmul", metadata={op_name="MatMul_1"}
}

ENTRY %main (a: f16[8,8], b: f32[8,8], s: (s32[], f16[8,8])) -> f16[8,8] {
  %a = f16[8,8]{1,0} parameter(0)
  %b = f32[8,8]{1,0} parameter(1)
  %s.1 = (s32[], f16[8,8]{1,0}) parameter(2)
  %c = (f16[8,8]{1,0}, u8[0]{0}) custom-call(%a, %a), custom_call_target="__cudnn$convForward"
  %f = f16[8,8]{1,0} fusion(%a), kind=kCustom, calls=%inner
  %w = (s32[], f16[8,8]{1,0}) while(%s.1), body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %g = f16[8,8]{1,0} custom-call(%a, %b), custom_call_target="__cublas$gemm", metadata={op_name="net/fc/MatMul"}
  ROOT %t = f16[8,8]{1,0} custom-call(%b), custom_call_target="__cub$DeviceRadixSort"
}
"""

# Of presets in fp16, what is computed in 32 bits, and why: patterns of names and shapes in a report.
FULL = {
    "resnet": {"resnet50/fc": "logits"},
    "gnmt": {
        r"einsum/Einsum|call\.\d+/while_3": "the gradient of attention's direction, summed over queries in blocks"
    },
    "maskrcnn": {
        r"box_head/box_score|MatMul_\d (1024x455|\d+x1024)": "logits and codes of boxes (Layers.dense), and gradients",
        r"MatMul \d+x256|MatMul/MatMul": "the mask kernels of the regions' classes are chosen by a one-hot product",
        r"MatMul_\d \d+x28x(112|28)": "the masks to learn are cut out of the annotated ones",
    },
}


def test_matrices_are_counted_by_the_type_of_their_operands() -> None:
    kernels = hlo.kernels(hlo.Program(PROGRAM))
    assert kernels["matrix_types"] == {"f16": 1 + 1, "f32": 1 + 3}
    assert kernels["wide_matrices"] == {"net/fc": 1, "MatMul_1 8x8": 3}
    assert kernels["calls"]["__cub$DeviceRadixSort"] == 1


def records() -> list[tuple[str, str]]:
    names = []
    for benchmark, system, _ in presets.to_compile():
        config = benchmarks.module(benchmark, "presets").PRESETS[system]
        if config.precision == "fp16" and series.record_of(benchmark, system):
            names.append((benchmark, system))
    return names


@pytest.mark.parametrize(("benchmark", "system"), records())
def test_a_preset_of_fp16_multiplies_in_16_bits(benchmark: str, system: str) -> None:
    for name, report in series.reports(series.record_of(benchmark, system)).items():
        actual = report["kernels"]
        unnamed = [
            x for x in actual["wide_matrices"] if not any(re.fullmatch(p, x) for p in FULL.get(benchmark, {}))
        ]
        assert not unnamed, f"{name}: in 32 bits"
        assert set(actual["matrix_types"]) <= {"f16", "f32"}
        assert actual["matrix_types"]["f16"] > 10 * sum(actual["wide_matrices"].values())


@pytest.mark.parametrize("system", [system for benchmark, system in records() if benchmark == "gnmt"])
def test_the_only_wide_product_of_gnmt_is_the_one_of_each_block_of_queries(system: str) -> None:
    config = benchmarks.module("gnmt", "presets").PRESETS[system]
    reports = series.reports(series.record_of("gnmt", system))
    for i, length in enumerate(config.bucket_limits):
        rows = tf.TensorSpec([config.micro_batch_size, length, config.width], tf.float32)
        blocks = attention._blocks(rows, rows)
        products = sum(reports[f"train-{i}"]["kernels"]["wide_matrices"].values())
        # One block of few queries is a fusion, and no product of a library's.
        assert products == blocks or (blocks == 1 and products == 0), length
