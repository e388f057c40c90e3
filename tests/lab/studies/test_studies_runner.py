"""Tests how a study handles the processes of its runs: benchmarks that fail, and signals; trains nothing."""

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from common.errors import UserError
from lab.studies import __main__ as studies_main
from lab.studies import legw_mnist, runner

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


@dataclasses.dataclass
class Study:
    name: str = "idle"
    benchmark: str = "idle"
    preset: str = "cpu-tiny"
    flags: tuple[str, ...] = ()

    def data(self) -> pathlib.Path:
        return ROOT


@dataclasses.dataclass
class Row:
    seed: int
    id: str = "row"
    flags: tuple[str, ...] = ()


@pytest.fixture
def run(tmp_path, monkeypatch):
    (tmp_path / "packages" / "idle").mkdir(parents=True)
    (tmp_path / "packages" / "idle" / "__main__.py").write_text(MAIN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(
        runner, "identity", lambda study, row, extra: ("", row.seed)
    )  # The benchmark has no configuration.
    return lambda seed: runner.Runner(Study(), None, None).run_all([Row(seed)])[0]


def test_a_missed_target_and_a_divergence_are_results(run) -> None:
    assert run(1)["quality"] == 0.5


def test_a_divergence_is_a_result(run) -> None:
    assert run(3)["quality"] is None


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


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# A study that makes its data first.
MAKING = """
import dataclasses, pathlib, sys
from common.errors import UserError
from lab.studies import runner

class Study:
    name, benchmark, preset, flags = "idle", "idle", "cpu-tiny", ()
    def data(self):
        status = runner.guarded(["bash", "-c", "sleep 120 & echo $!; wait; exit 3"])
        raise UserError(f"making it failed: {status}")

class Row:
    id, seed, flags = "row", 0, ()

runner.ROOT = pathlib.Path(sys.argv[1])
runner.identity = lambda study, row, extra: ("", row.seed)
try:
    runner.Runner(Study(), None, None).run_all([Row()])
except UserError as error:
    print(error)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_study_that_is_ended_while_it_makes_its_data_leaves_nothing_running(tmp_path, number) -> None:
    command = [sys.executable, "-c", MAKING, str(tmp_path)]
    study = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    sleeper = int(study.stdout.readline())
    began = time.monotonic()
    study.send_signal(number)
    said = study.stdout.read()
    assert study.wait(60) == 128 + number and said.startswith(signal.Signals(number).name)
    assert time.monotonic() - began < 60 and not alive(sleeper)


def test_overrides_that_name_no_field_are_refused() -> None:
    """A seed as an override is refused, because it would turn the rows of three seeds into one run."""
    with pytest.raises(UserError, match="--seed=7: only --config.FIELD=VALUE may follow --"):
        runner.Runner(Study(), None, None, ["--config.precision=fp32", "--seed=7"])


def test_a_part_does_not_replace_a_whole_table(tmp_path, capsys) -> None:
    home, other = tmp_path / "studies", tmp_path / "results"
    assert runner.folder_for(home, "results.csv", 0, other) == home
    home.mkdir()
    (home / "results.csv").write_text("a\n1\n2\n")
    assert runner.folder_for(home, "results.csv", 1, other) == other
    assert "results.csv has 2 rows, this one 1: it goes to" in capsys.readouterr().out
    assert runner.folder_for(home, "results.csv", 2, other) == home


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "results").write_text("a file")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(legw_mnist, "STUDY", dataclasses.replace(legw_mnist.STUDY, data=lambda: tmp_path))
    monkeypatch.setattr(sys, "argv", ["studies", "legw-mnist", "--limit=1"])
    assert studies_main.main() == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Not a directory; make it writable or free some space" in error


def test_ctrl_c_is_one_line(monkeypatch, capsys) -> None:
    def interrupt(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(legw_mnist, "run", interrupt)
    assert studies_main.main(["legw-mnist"]) == 130 and capsys.readouterr().err == "error: interrupted\n"


# A run_and_time.sh whose runs end with REASONS, "none" without a log, and with the exit status STATUS.
SCRIPT = """
import json, os, pathlib, sys
reasons = json.loads(os.environ["REASONS"])
assert os.environ["NEXP"] == str(len(reasons)) and sys.argv[1:] == ["--flag"]
folder = pathlib.Path(os.environ["RESULT_DIR"], os.environ["SYSTEM"], "idle")
folder.mkdir(parents=True, exist_ok=True)
for number, reason in enumerate(reasons):
    lines = [("run_start", {}), ("run_stop", {"status": "aborted", "reason": reason})]
    for key, metadata in lines if reason != "none" else []:
        record = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME", "key": key, "value": None,
                  "metadata": {"file": "", "lineno": 1, **metadata}}
        with open(folder / f"result_{number}.txt", "a") as file:
            file.write(":::MLLOG " + json.dumps(record) + "\\n")
sys.exit(int(os.environ["STATUS"]))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Returns run(*reasons), which runs run_and_time.sh and returns the names of the logs."""
    path = tmp_path / "idle" / "run_and_time.sh"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}" + SCRIPT)
    path.chmod(0o755)
    monkeypatch.setattr(runner, "ROOT", tmp_path)

    def run(*reasons: str, status: int = 1) -> list[str]:
        monkeypatch.setenv("REASONS", json.dumps(reasons))
        monkeypatch.setenv("STATUS", str(status))
        logs = runner.run_and_time("idle", "s", tmp_path, tmp_path / "results", ["--flag"], len(reasons))
        return [log.name for log in logs]

    return run


MISSED, DIVERGED = "the target was not reached in 5 steps", "loss is nan at step 5"


def test_a_missed_target_of_run_and_time_is_a_result(script) -> None:
    assert script(MISSED, DIVERGED) == ["result_0.txt", "result_1.txt"]


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("last", ["none", "index out of range", "SIGTERM"])
def test_a_run_of_run_and_time_that_did_not_end_is_an_error(script, last, status) -> None:
    """Earlier runs do not matter: an exception ends Python with 1, as a missed target does."""
    with pytest.raises(UserError, match="idle: the run failed; see above") as error:
        script(MISSED, last, status=status)
    assert error.value.exit_code == 1


def test_the_log_of_an_earlier_run_does_not_stand_for_one_that_failed(script) -> None:
    assert script(MISSED)
    with pytest.raises(UserError, match="the run failed"):
        script("none")


def test_run_and_time_hands_on_the_status(script) -> None:
    with pytest.raises(UserError, match="the run failed") as error:
        script(MISSED, status=3)
    assert error.value.exit_code == 3


def test_a_study_that_is_ended_leaves_no_training_of_run_and_time_running(tmp_path) -> None:
    path = tmp_path / "idle" / "run_and_time.sh"
    path.parent.mkdir()
    path.write_text("#!/usr/bin/env bash\nsleep 120 & echo $!; wait\n")
    path.chmod(0o755)
    code = "import pathlib, sys; from lab.studies import runner; runner.ROOT = pathlib.Path(sys.argv[1]); "
    code += "runner.run_and_time('idle', 's', runner.ROOT, runner.ROOT, [])"
    command = [sys.executable, "-c", code, str(tmp_path)]
    study = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    sleeper = int(study.stdout.readline())
    study.terminate()
    assert (
        "EndedError: SIGTERM: what was running was ended; begin the study again"
        in study.communicate(timeout=60)[1]
    )
    assert not alive(sleeper)
