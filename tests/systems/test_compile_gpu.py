"""Tests what is read of a GPU's programs, and that kept ones compute in the 16 bits that their presets ask for."""

from __future__ import annotations

import json

import pytest

from common.config import benchmarks
from systems.compile import hlo, run, series

PROGRAM = """HloModule m, replica_count=8

%inner (p: f16[8,8]) -> f16[8,8] {
  %p.9 = f16[8,8]{1,0} parameter(0)
  ROOT %d = f16[8,8]{1,0} dot(%p.9, %p.9), lhs_contracting_dims={1}, metadata={op_name="net/attention/MatMul"}
}

%body (s: (s32[], f16[16])) -> (s32[], f16[16]) {
  %s = (s32[], f16[8,8]{1,0}) parameter(0)
  %x = f16[8,8]{1,0} get-tuple-element(%s), index=1
  %y = (f32[8,8]{1,0}, s8[64]{0}) custom-call(%x, %x), custom_call_target="__cublas$lt$matmul"
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

# Layers whose products are in 32 bits in a preset of fp16, and why: parts of the names that TensorFlow gives them.
FULL = {
    "resnet": {"resnet50/fc": "logits"},
}


def test_matrices_are_counted_by_the_type_of_their_operands() -> None:
    found = hlo.kernels(hlo.Program(PROGRAM))
    assert found["matrix_types"] == {"f16": 1 + 1 + 3, "f32": 1}
    assert found["wide_matrices"] == {"net/fc": 1}
    assert found["calls"]["__cub$DeviceRadixSort"] == 1 and found["fusions"] == {"Custom": 1}


def records() -> list[tuple[str, str]]:
    kept = []
    for benchmark, system, _ in series.presets():
        config = benchmarks.module(benchmark, "presets").PRESETS[system]
        if config.precision == "fp16" and series.record_of(benchmark, system).exists():
            kept.append((benchmark, system))
    return kept


@pytest.mark.parametrize(("benchmark", "system"), records())
def test_a_preset_of_fp16_multiplies_in_16_bits(benchmark: str, system: str) -> None:
    record = json.loads(series.record_of(benchmark, system, run.RESULTS).read_text())
    for name, report in series.reports(record).items():
        found = report["kernels"]
        named = [
            layer
            for layer in found["wide_matrices"]
            if any(part in layer for part in FULL.get(benchmark, {}))
        ]
        assert sorted(named) == sorted(found["wide_matrices"]), f"{name}: products in 32 bits"
        assert set(found["matrix_types"]) <= {"f16", "f32"}
        assert found["matrix_types"]["f16"] > 10 * sum(found["wide_matrices"].values())
