"""Tests lab/bench/gpu_programs.py: flags are fields of the presets; DIR keeps compiled programs."""

from __future__ import annotations

import json

import pytest

from common.config import benchmarks, overrides
from lab.bench import gpu_programs
from systems.compile import run

PROGRAM = """HloModule m

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  ROOT %copy.1 = f32[4,8]{0,1} copy(%x)
}
"""


@pytest.mark.parametrize("name", list(gpu_programs.CASES))
def test_flags_are_fields(name):
    case = gpu_programs.CASES[name]
    preset = benchmarks.module(name, "presets").PRESETS[case.system]
    overrides.override_all(preset, list(case.flags))


def test_a_program_compiled_before_is_counted_without_a_compiler(tmp_path):
    folder, keep = tmp_path / "export", tmp_path / "keep"
    folder.mkdir(), keep.mkdir()
    (folder / "train.mlir.bc").write_bytes(b"program")
    (folder / "manifest.json").write_text(
        json.dumps({"programs": [{"name": "train", "file": "train.mlir.bc"}]})
    )
    digest = run.digest_of(folder / "train.mlir.bc")
    report = {"digest": digest, "target": "h100", "needed_bytes": 9, "processor_seconds": 1.0, "versions": {}}
    (keep / "report.json").write_text(json.dumps(report))
    (keep / f"{digest}-h100-1.txt").write_text(PROGRAM)
    found, kernels = gpu_programs.counted(folder, "h100", keep)
    assert found["kernels"] == found["copies"]["count"] == 1 and found["digest"] == digest
    assert sum(times for *_, times in kernels) == 1
