"""Tests the steps beside those of peers, measured and compiled, and the small sets with their peers."""

import json
import subprocess
import sys

import numpy as np
import pytest

from common.config import benchmarks, overrides
from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy
from lab.bench import compiled_step, small_sets, steps
from lab.bench.harness import ROOT
from lab.bench.steps import CASES

SECONDS = {"ours": 2.0, "keras_fit": 2.3, "tf_models": 2.1, "torch": 1.0}
PYTHONS = {"torch": "/torch/python", "jax": "/jax/python"}


@pytest.fixture
def together(monkeypatch):
    """Gives contenders SECONDS per step; returns the lists of those that ran together."""
    ran: list[list[str]] = []

    def compare(commands: dict, count: int, rounds: int) -> dict[str, dict]:
        ran.append(list(commands))
        rows = {}
        for name in commands:
            seconds = SECONDS.get(name, 3.0)
            rows[name] = {
                "seconds": seconds * count,
                "rounds_seconds": [seconds * count] * rounds,
                "ratio_to_ours": seconds / 2,
            }
        return rows

    monkeypatch.setattr(steps, "compare", compare)
    return ran


def test_a_row_has_the_seconds_of_a_step_and_its_bar(together) -> None:
    rows = steps.measure(CASES["transformer-multi30k"](PYTHONS), 3)["contenders"]
    assert together == [["ours", "tf_models", "torch"]] and rows["torch"]["seconds"] == 1.0
    assert rows["ours"]["seconds"] == 2.0 and rows["ours"]["rounds_seconds"] == [2.0] * 3
    assert {name: row["bar"] for name, row in rows.items() if "bar" in row} == {"tf_models": 1.1}


def test_another_network_is_refused(monkeypatch) -> None:
    row = {"seconds": 1.0, "rounds_seconds": [1.0], "ratio_to_ours": 1.0}
    counts = {"ours": 5000, "keras_fit": 5000, "torch": 5026}
    monkeypatch.setattr(
        steps, "compare", lambda commands, *_: {n: {**row, "parameters": counts[n]} for n in commands}
    )
    steps.measure(CASES["ssd"]({}), 1)
    with pytest.raises(SystemExit, match="torch: 5026 parameters, ours has 5000"):
        steps.measure(CASES["ssd"](PYTHONS), 1)


@pytest.mark.parametrize("name", CASES)
def test_every_contender_gets_the_same_network(name: str) -> None:
    case = CASES[name](PYTHONS)
    manifests = {
        command[-1]
        for contender, command in case.commands.items()
        if contender != "jax"  # One network.
    }
    assert len(manifests) == 1 and "ours" in case.commands
    if case.table != "small" and name != "maskrcnn":  # Its contenders get precision and sizes.
        manifest = json.loads(case.commands["ours"][-1])
        assert case.unit == "s" or case.examples == manifest["batch"]["train"]
        assert manifest["config"]["num_replicas"] == 1 and manifest["precision"] in case.title
    assert case.title == CASES[name]({}).title


def test_a_run_adds_to_the_file_of_another(together, monkeypatch, tmp_path, capsys) -> None:
    output = tmp_path / "steps.json"

    def run(*cases: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}", "--cases", *cases])
        steps.main()
        return json.loads(output.read_text())["cases"]

    assert list(run("ssd")) == ["ssd"]
    output_text = capsys.readouterr().out
    assert (
        "ssd keras_fit          2300.00 ms/step, 1.150 x ours (bar 1.05: met)\n" in output_text
        and "left out: torch, jax (give --torch_python, --jax_python)" in output_text
    )
    cases = run("percep*")
    assert list(cases) == ["ssd", "perceptron"]
    with pytest.raises(SystemExit):
        run("resnet-fp64")


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


def test_generated_figures_are_annotated_pictures_of_two_splits(tmp_path):
    small_sets._figures(6, 3, tmp_path)
    sources = coco_source.find(tmp_path, options := Options())
    contents, names, _ = coco_tidy.tidy(sources, True, options.report)
    assert [len(content["images"]) for content in contents] == [6, 3] and len(names) == 4


def test_neighbors_are_those_of_a_plain_search():
    rng = np.random.default_rng(0)
    x, held_out, y = rng.random((40, 4, 4, 3)), rng.random((7, 4, 4, 3)), rng.integers(0, 3, 40)
    expected = []
    for one in held_out:
        near = np.argsort([((one - other) ** 2).sum() for other in x])[: small_sets._NEIGHBORS]
        expected.append(np.bincount(y[near], minlength=3).argmax())
    assert small_sets._neighbors(x, y, held_out, 3).tolist() == expected


def test_a_peer_tells_stripes_better_than_chance(tmp_path):
    small_sets._stripes(48, 24, tmp_path)
    answer = small_sets.peer(tmp_path, seconds=3, evaluations=3)
    assert answer["value"] > 0.4 and answer["what"]
