"""Tests lab/bench/steps.py on given seconds (bars, pairs, files, one network for all)."""

import json
import sys

import pytest

from lab.bench import steps
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
        for name, command in commands.items():
            layers = int(command[-1]) if command[-1].isdecimal() else 1  # Of a perceptron.
            seconds = SECONDS.get(name, 3.0) * layers
            rows[name] = {
                "seconds": seconds * count,
                "rounds_seconds": [seconds * count] * rounds,
                "ratio_to_ours": seconds / 2 / layers,
            }
        return rows

    monkeypatch.setattr(steps, "compare", compare)
    return ran


def test_a_large_network_runs_in_pairs(together) -> None:
    rows = steps.measure(CASES["transformer-big"](PYTHONS, False), 3)["contenders"]
    assert together == [["ours", n] for n in ("tf_models", "torch")]
    assert rows["torch"]["ours_seconds"] == 2.0 and rows["torch"]["seconds"] == 1.0
    assert rows["ours"]["seconds"] == 2.0 and rows["ours"]["rounds_seconds"] == [2.0] * 3
    assert {name: row["bar"] for name, row in rows.items() if "bar" in row} == {"tf_models": 1.1}
    steps.measure(CASES["transformer-multi30k"](PYTHONS, False), 1)
    assert together[2:] == [["ours", "tf_models", "torch"]]


@pytest.mark.parametrize(
    "name, missing, bars",
    [
        ("perceptron-4", [], {"torch": 1 / 1.05}),
        ("perceptron-4", ["jax"], {}),  # Nobody knows which peer is the fastest.
        ("mnist-lstm", ["jax"], {"keras_fit": 1.1, "torch": 1.0}),
        ("gnmt-full", ["torch"], {"keras_tuned": 1.1}),
    ],
)
def test_bars(name: str, missing: list[str], bars: dict[str, float]) -> None:
    case = CASES[name](PYTHONS, False)
    ratios = {"ours": 1, "keras_fit": 1.2, "torch": 1.1, "jax": 1.3}
    rows = {n: {"ratio_to_ours": ratios.get(n, 2)} for n in case.commands if n not in missing}
    assert steps.bars_of(case, rows, missing) == bars


def test_another_network_is_refused(monkeypatch) -> None:
    row = {"seconds": 1.0, "rounds_seconds": [1.0], "ratio_to_ours": 1.0}
    counts = {"ours": 5000, "keras_fit": 5000, "torch": 5026}
    monkeypatch.setattr(
        steps, "compare", lambda commands, *_: {n: {**row, "parameters": counts[n]} for n in commands}
    )
    steps.measure(CASES["ssd"]({}, False), 1)
    with pytest.raises(SystemExit, match="torch: 5026 parameters, ours has 5000"):
        steps.measure(CASES["ssd"](PYTHONS, False), 1)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_contender_gets_the_same_network(name: str, quick: bool) -> None:
    case = CASES[name](PYTHONS, quick)
    told = {
        tuple(command[command.index("lab.bench.contenders") + 2 :][-2:]) for command in case.commands.values()
    }
    assert len({settings[-1] for settings in told}) == 1 and "ours" in case.commands
    if case.table != "small" and name != "maskrcnn":  # Its contenders get precision and sizes.
        manifest = json.loads(case.commands["ours"][-1])
        assert case.unit == "s" or case.examples == manifest["batch"]["train"]
        assert manifest["config"]["num_replicas"] == 1 and manifest["precision"] in case.title
    assert (case.title == CASES[name]({}, False).title) != (quick and case.table != "small")


def test_a_run_adds_to_the_file_of_another(together, monkeypatch, tmp_path, capsys) -> None:
    output = tmp_path / "steps.json"

    def run(*cases: str) -> dict:
        monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}", "--cases", *cases])
        steps.main()
        return json.loads(output.read_text())["cases"]

    assert list(run("ssd")) == ["ssd"]
    said = capsys.readouterr().out
    assert (
        "ssd keras_fit          2300.00 ms/step, 1.150 x ours (bar 1.05: met)\n" in said
        and "left out: torch, jax (give --torch-python, --jax-python)" in said
    )
    found = run("perceptron-*")
    assert list(found) == ["ssd", *(f"perceptron-{n}" for n in range(1, 5))]
    with pytest.raises(SystemExit):
        run("resnet-fp64")
