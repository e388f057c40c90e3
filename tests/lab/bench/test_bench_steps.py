"""Tests lab/bench/steps.py on given seconds (bars, files, one network for all)."""

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
    rows = steps.measure(CASES["transformer-multi30k"](PYTHONS, False), 3)["contenders"]
    assert together == [["ours", "tf_models", "torch"]] and rows["torch"]["seconds"] == 1.0
    assert rows["ours"]["seconds"] == 2.0 and rows["ours"]["rounds_seconds"] == [2.0] * 3
    assert {name: row["bar"] for name, row in rows.items() if "bar" in row} == {"tf_models": 1.1}


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
        command[-1]
        for contender, command in case.commands.items()
        if contender != "jax"  # One network.
    }
    assert len(told) == 1 and "ours" in case.commands
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
        and "left out: torch, jax (give --torch_python, --jax_python)" in said
    )
    found = run("percep*")
    assert list(found) == ["ssd", "perceptron"]
    with pytest.raises(SystemExit):
        run("resnet-fp64")
