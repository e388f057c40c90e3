"""Tests what the study of nuclei reads from its logs, and which runs it repeats; trains nothing."""

import argparse
import pathlib
import shutil

import pytest

from common.errors import UserError
from lab.studies import nuclei, runner
from tests.benchmarks import line

ROOT = pathlib.Path(__file__).resolve().parents[3]
REAL = ROOT / "lab/studies" / "nuclei" / "maskrcnn_result_0.txt"


def write_log(path: pathlib.Path, reason: str) -> None:
    """Writes a log of an evaluation."""
    lines = [line("run_start"), line("eval_accuracy", 0.3, 60000, AP50=0.7, epoch_num=4)]
    lines.append(line("run_stop", None, 120000, status="aborted", reason=reason))
    path.write_text("".join(lines))


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Returns run(*flags) of the study, and the list of the networks that it trains; SSD fails at first."""
    trained: list[str] = []
    reasons = ["index out of range", "the target was not reached in 90 steps"]

    def train(self, command, started=None, **options) -> int:
        benchmark = command[command.index("-m") + 1]
        (folder,) = (word.partition("=")[2] for word in command if word.startswith("--result_dir="))
        log = pathlib.Path(folder, nuclei.SYSTEM, benchmark, "result_0.txt")
        log.parent.mkdir(parents=True)
        trained.append(benchmark)
        if benchmark == "maskrcnn":
            shutil.copy(REAL, log)
        else:
            write_log(log, reasons.pop(0))
        return 1

    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner.Children, "run", train)
    monkeypatch.setattr(nuclei, "unpack", lambda _: tmp_path / "images")
    monkeypatch.setattr(nuclei, "convert", lambda *_: {"train": 8, "eval": 2})

    def run(*overrides: str, benchmark: str | None = None) -> int:
        return nuclei.run(argparse.Namespace(tune=True, benchmark=benchmark, overrides=[*overrides]))

    return run, trained


def test_a_study_that_failed_in_its_second_network_trains_only_that(study, capsys) -> None:
    run, trained = study
    with pytest.raises(UserError, match="failed"):
        run()
    assert run() == 0 and trained == ["maskrcnn", "ssd", "ssd"]
    text = capsys.readouterr().out
    assert "| ssd | 0.7000 |  | 4 | 2.0 |" in text and "| maskrcnn | 0.8500 | 0.8507 | 16 | 11.3 |" in text


def test_other_settings_are_another_run(study) -> None:
    run, trained = study
    for _ in range(2):  # The second time finds everything done.
        for rate in (0.01, 0.02):
            assert run(f"--config.optimizer.base_learning_rate={rate}", benchmark="maskrcnn") == 0
    assert trained == ["maskrcnn"] * 2


@pytest.mark.parametrize(
    ("flag", "message"), [("train_epoch=3", "no field 'train_epoch'"), ("seed=-1", "config.seed=-1: must be")]
)
def test_invalid_flags_are_refused_before_a_network_trains(study, flag, message) -> None:
    run, trained = study
    with pytest.raises(UserError, match=message):
        run(f"--config.{flag}")
    assert not trained


def test_a_run_without_an_evaluation_is_one_line(tmp_path) -> None:
    log = tmp_path / "result_0.txt"
    write_log(log, "loss is nan at step 5")
    log.write_text("".join(x for x in log.read_text().splitlines(True) if "eval_accuracy" not in x))
    with pytest.raises(UserError, match="no evaluation; lower the learning rate"):
        nuclei.figures_of(log)
