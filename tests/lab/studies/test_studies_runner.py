"""Tests how a study handles the processes of its runs: benchmarks that fail, and signals; trains nothing."""

import dataclasses
import pathlib
import sys

import pytest

from common.errors import UserError
from lab.studies import __main__ as studies_main
from lab.studies import legw, runner
from lab.studies.legw_values import MNIST

ROOT = pathlib.Path(__file__).resolve().parents[3]
# A benchmark that writes a log chosen by its seed, and ends with 1, the status of a missed target and an exception.
MAIN = """
import json, pathlib, sys
flags = dict(a.lstrip("-").split("=", 1) for a in sys.argv[1:])
reason = {"1": "the target was not reached in 5 steps", "2": "index out of range", "3": "loss is nan at step 5"}
folder = pathlib.Path(flags["result_dir"], flags["system"], "idle")
folder.mkdir(parents=True)
if flags["seed"] in reason:
    lines = [("run_start", None, {}), ("eval_accuracy", 0.5, {"epoch_num": 1}),
             ("run_stop", None, {"status": "aborted", "reason": reason[flags["seed"]]})]
    with open(folder / "result_0.txt", "w") as file:
        for key, value, metadata in lines:
            record = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": value,
                      "metadata": {"file": "", "lineno": 1, **metadata}}
            file.write(":::MLLOG " + json.dumps(record) + "\\n")
print("trained", flush=True)
if flags["seed"] in "02":
    raise IndexError("index out of range")
sys.exit(1)
"""


@dataclasses.dataclass(frozen=True)
class Row:
    id: str
    seed: int = 0
    flags: tuple[str, ...] = ()


STUDY = dataclasses.replace(MNIST, name="idle", benchmark="idle", preset="cpu-tiny", data=lambda: ROOT)


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "packages" / "idle").mkdir(parents=True)
    (tmp_path / "packages" / "idle" / "__main__.py").write_text(MAIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(
        runner, "identity", lambda study, row, extra: ("", row.seed)
    )  # The benchmark has no configuration.
    return lambda seed: runner.Runner(STUDY).run_all([Row("row", seed)])[0]


@pytest.mark.parametrize("seed, quality", [(1, 0.5), (3, None)])
def test_a_missed_target_and_a_divergence_are_results(run, seed, quality) -> None:
    assert run(seed)["quality"] == quality


def test_a_run_begins_without_what_an_interrupted_one_left(run, tmp_path) -> None:
    """A run that resumed would lack a part of its curve and its time to train."""
    folder = tmp_path / "results" / "study-idle"
    leftover = folder / "logs" / "row" / "old.txt"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    assert run(1)["quality"] == 0.5 and not leftover.exists()
    assert list(leftover.parent.glob("*/*/result_0.txt"))


def test_a_second_call_touches_nothing_of_a_call_that_trains(run, tmp_path) -> None:
    leftover = tmp_path / "results/study-idle/logs/row/old.txt"
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    with (
        runner.Runner(STUDY)._locked(),
        pytest.raises(UserError, match="another run is writing it; wait for it"),
    ):
        run(1)
    assert leftover.exists() and run(1)["quality"] == 0.5 and run(1)["quality"] == 0.5


def test_what_cannot_be_removed_does_not_stop_a_run(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "results/study-idle/logs/row").mkdir(parents=True)
    monkeypatch.setattr(runner.shutil, "rmtree", lambda *_, **__: None)
    assert run(1)["quality"] == 0.5


def test_a_record_that_a_full_disk_refuses_is_one_line_and_no_record(run, tmp_path, monkeypatch) -> None:
    def full(path: pathlib.Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    with pytest.raises(UserError, match="row.json: cannot write: No space left on device; free space there"):
        run(1)
    assert not list(tmp_path.rglob("row.json*"))


@pytest.mark.parametrize("seed", [0, 2], ids=["before run_start", "after run_start"])
def test_an_exception_is_one_line_that_says_where_the_rest_is(run, tmp_path, seed) -> None:
    with pytest.raises(UserError, match="IndexError: index out of range") as error:
        run(seed)
    output = pathlib.Path(str(error.value).rpartition("(all of it: ")[2].rstrip(")"))
    assert output.is_relative_to(tmp_path) and "Traceback" in output.read_text()
    assert not list(tmp_path.glob("results/*/rows/*"))


def test_overrides_that_name_no_field_are_refused() -> None:
    """A seed as an override is refused, because it would turn the rows of three seeds into one run."""
    with pytest.raises(UserError, match="--seed=7: only --config.FIELD=VALUE may follow --"):
        runner.Runner(STUDY, overrides=["--config.precision=fp32", "--seed=7"])


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "results").write_text("a file")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(studies_main, "LEGW", (dataclasses.replace(MNIST, data=lambda: tmp_path),))
    monkeypatch.setattr(sys, "argv", ["studies", "legw-mnist", "--limit=1"])
    assert studies_main.main() == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Not a directory; make it writable or free some space" in error


def test_ctrl_c_is_one_line(monkeypatch, capsys) -> None:
    def interrupt(study, args):
        raise KeyboardInterrupt

    monkeypatch.setattr(legw, "run", interrupt)
    assert studies_main.main(["legw-mnist"]) == 130 and capsys.readouterr().err == "error: interrupted\n"
