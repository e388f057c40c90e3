"""Tests lab/bench/compiled_step.py: flags, what they keep of a report, and the steps."""

import json
import subprocess
import sys

import pytest

from common.config import benchmarks, overrides
from lab.bench import compiled_step
from lab.bench.harness import ROOT

REPORT = {
    "estimated_ms": 2.0,
    "optimal_ms": 1.0,
    "cost": {"bytes accessed": 5.0},
    "needed_bytes": 7,
    "cycles": {"total": 9, "by_kind": {"matrix": 9}, "without": {"rng-bit-generator": 3}},
    "copies": {"count": 0, "bytes": 0, "cycles": 0},
    "compile_seconds": 1.0,
    "digest": "d",
}


PROGRAM = """HloModule m

ENTRY %main (x: f32[4,8]) -> f32[4,8] {
  %x = f32[4,8]{1,0} parameter(0)
  ROOT %copy.1 = f32[4,8]{0,1} copy(%x)
}
"""


@pytest.mark.parametrize(
    "kind, name", [(kind, name) for kind, cases in compiled_step.CASES.items() for name in cases]
)
def test_flags_are_fields_and_peers_have_a_variant(kind, name):
    case = compiled_step.CASES[kind][name]
    preset = benchmarks.module(name, "presets").PRESETS[case.system]
    for flags in case.variants.values():
        overrides.override_all(preset, [*case.flags, *flags])
    assert all(variant in case.variants for variant, _, _ in case.peers.values())


def test_calls_without_a_cost_are_counted():
    assert compiled_step.figures(REPORT)["generator_calls"] == 3
    assert compiled_step.figures(REPORT, PROGRAM)["kernels"] == 1
    with pytest.raises(SystemExit, match="out of memory"):
        compiled_step.figures({"error": "out of memory"})


def test_a_peers_step_is_an_export(tmp_path):
    """A small Transformer: every argument has a name, and the state's new values come first."""
    pytest.importorskip("flax", reason="flax is not installed (make aot)")
    keywords = json.dumps({"batch": 1, "length": 8, "sizes": [1, 16, 32, 2, 20, 0.1]})
    command = [
        sys.executable,
        "-m",
        "lab.bench.contenders.jax_export",
        "jax_transformer",
        str(tmp_path),
        keywords,
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    (program,) = manifest["programs"]
    names = [argument["name"] for argument in program["arguments"]]
    assert len(set(names)) == len(names)
    updates = [result["updates"] for result in program["results"]]
    assert set(updates[: len(manifest["state"])]) == {one["name"] for one in manifest["state"]}
    assert updates[len(manifest["state"]) :] == [None]
