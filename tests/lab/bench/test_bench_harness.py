"""Tests the harness of lab/bench/: rounds, ratios, contenders as processes, peers' interpreters, result files."""

import contextlib
import json
import subprocess
import sys
import types

import pytest

from lab.bench import faults, goodput, plan_published
from lab.bench.contenders import __main__ as runner
from lab.bench.harness import rounds, scripts


def test_every_second_round_runs_in_reverse_order() -> None:
    order: list[str] = []
    results = rounds.alternate(
        {name: lambda name=name: order.append(name) or len(order) for name in "abc"}, 3
    )
    assert "".join(order) == "abccbaabc" and results == {"a": [1, 6, 7], "b": [2, 5, 8], "c": [3, 4, 9]}


def test_a_row_has_medians_and_ratios_within_rounds() -> None:
    rows = rounds.rows_of({"ours": [1.0, 2.0, 4.0], "peer": [2.0, 2.00005, 12.0]})
    assert rows["peer"] == {"seconds": 2.00005, "rounds_seconds": [2.0, 2.0, 12.0], "ratio_to_ours": 2.0}


def test_contenders_are_processes_that_answer_lines() -> None:
    code = (
        "from lab.bench.contenders.__main__ import serve\n"
        "print('a warning')\nserve(lambda steps: sum(range(steps)), version='1', parameters=3)"
    )
    rows = rounds.compare({name: [sys.executable, "-c", code] for name in ("ours", "peer")}, 30, 2)
    assert rows["peer"]["version"] == "1" and rows["peer"]["parameters"] == 3
    assert len(rows["ours"]["rounds_seconds"]) == 2 and rows["ours"]["ratio_to_ours"] == 1
    assert rows["ours"]["cpu_seconds"] >= 0


def test_a_contender_that_ends_is_one_line() -> None:
    with pytest.raises(SystemExit, match="peer ended: ValueError: no such network"):
        rounds.Contender("peer", [sys.executable, "-c", "raise ValueError('no such network')"])
    with pytest.raises(SystemExit, match="peer ended: .*lab.bench.contenders.unheard_of"):
        rounds.Contender("peer", rounds.command("unheard_of"))


def test_the_runner_makes_the_module_s_contender(monkeypatch, capsys) -> None:
    module = type("Module", (), {"make": staticmethod(lambda *arguments: (print, {"told": arguments}))})
    monkeypatch.setattr(
        runner.importlib, "import_module", {"lab.bench.contenders.network": module}.__getitem__
    )
    monkeypatch.setattr(sys, "stdin", ["7\n"])
    runner.main(["network", "a", "b"])
    about, printed, times = capsys.readouterr().out.splitlines()
    assert json.loads(about) == {"told": ["a", "b"]} and printed == "7"
    assert set(json.loads(times)) == {"seconds", "cpu_seconds"}


def test_peers_without_an_interpreter_are_left_out(capsys) -> None:
    assert scripts.peers(None) == {} and scripts.peers(sys.executable) == {"torch": sys.executable}
    with pytest.raises(SystemExit, match="--jax_python=/none: no such interpreter"):
        scripts.peers(None, "/none")
    scripts.left_out({"jax": "x"}, ["torch", "jax"])
    scripts.left_out({"jax": "x"}, ["jax"])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["left out: torch (give --torch_python)"]


def test_a_folder_without_rounds_leaves_the_measured_plans_alone(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(plan_published, "RESULTS", tmp_path / "plan.json")
    monkeypatch.setattr(sys, "argv", ["plan_published", str(tmp_path)])
    assert plan_published.main() == 2 and not plan_published.RESULTS.exists()
    assert "holds no round" in capsys.readouterr().err


def test_a_result_names_its_machine(tmp_path) -> None:
    actual = scripts.head("numpy", "no-such-package")
    assert set(actual) == {"date", "machine"} and "no-such-package" not in actual["machine"]
    assert {
        "cpu",
        "instructions",
        "cores",
        "load_before",
        "python",
        "tensorflow",
        "tf-keras",
        "numpy",
    } == set(actual["machine"])
    scripts.write(actual, tmp_path / "new" / "result.json")
    assert json.loads((tmp_path / "new" / "result.json").read_text())["date"] == actual["date"]


@pytest.mark.parametrize(
    ("kind", "code", "right"), [("killed", 1, True), ("killed", 139, False), ("terminated", 1, False)]
)
def test_a_fault_has_the_status_of_its_run(tmp_path, monkeypatch, kind, code, right) -> None:
    launcher = types.SimpleNamespace(poll=lambda: code)
    run = types.SimpleNamespace(launcher=launcher, mark="", close=lambda: None)
    monkeypatch.setattr(faults.launched, "Launched", lambda *_, **__: run)
    monkeypatch.setattr(faults.launched, "marked", lambda _: {})
    monkeypatch.setattr(faults, "weights", lambda _: "usual")
    chain = faults.Chain(tmp_path, tmp_path, "pjrt", 2)
    chain.outcomes = {kind: {"expected": faults.KINDS[kind][2]}}
    chain.end("usual")
    assert chain.outcomes[kind] == {
        "hung": False,
        "status": code,
        "equal": True,
        "left": 0,
        "as_it_should": right,
    }


def test_faults_that_never_strike_end_the_script(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(faults.launched, "digits", lambda: contextlib.nullcontext(tmp_path))
    monkeypatch.setattr(faults, "undisturbed", lambda *_: "usual")
    monkeypatch.setattr(faults, "inject", lambda *_: {})
    monkeypatch.setattr(sys, "argv", ["faults", "--backends=pjrt", f"--output={tmp_path / 'faults.json'}"])
    with pytest.raises(SystemExit, match="pjrt/2: none of .* struck"):
        faults.main()


class Trained:
    """A run that saves ten checkpoints a second, under a launcher that is its only process."""

    text = ""

    def __init__(self, folder):
        code = "import pathlib, sys, time\nwhile True:\n    time.sleep(0.1)\n"
        code += "    n = len(list(pathlib.Path(sys.argv[1]).iterdir())) + 1\n"
        code += "    pathlib.Path(sys.argv[1], f'checkpoint_{n:08d}').touch()"
        self.folder = folder
        self.launcher = subprocess.Popen([sys.executable, "-c", code, str(folder)])

    def newest(self):
        return len(list(self.folder.iterdir()))

    def pids(self):
        return {0: self.launcher.pid}

    def close(self):
        self.launcher.kill()
        self.launcher.wait()


def test_goodput_counts_the_steps_and_seconds_that_faults_cost(tmp_path) -> None:
    starts, cuts = [], []

    def start():
        starts.append(Trained(tmp_path))
        return starts[-1]

    clean = goodput.measure(start, "undisturbed", 2, 0.5, lambda: cuts.append(1))
    assert not clean["faults"] and 1 <= clean["steps"] <= 20 and len(starts) == 1
    hurt = goodput.measure(start, "loop", 10, 3, lambda: cuts.append(1))
    # A frozen run whose launcher does not notice saves nothing more, so that the network's cut finds it as it was.
    assert [fault["kind"] for fault in hurt["faults"]] == ["killed", "frozen", "partition"] and cuts == [1]
    assert [("seconds_lost" in fault) for fault in hurt["faults"]] == [True, False, False]
    assert 0 < hurt["steps"] < 60 and len(starts) == 3
    with pytest.raises(RuntimeError, match="the run ended"):
        goodput.measure(start, "launcher", 9, 0.5, lambda: cuts.append(1))
