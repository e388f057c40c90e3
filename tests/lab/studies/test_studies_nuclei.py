"""Tests how the study of nuclei treats existing results; trains nothing."""

import argparse
import json
import pathlib
import shutil

import pytest

from common.errors import UserError
from lab.studies import nuclei, runner
from tests.benchmarks import line

ROOT = pathlib.Path(__file__).resolve().parents[3]
ASKED = {"preset": "a", "flags": ["--config.num_train_examples=3"]}


def write_log(path: pathlib.Path, **stop: str) -> None:
    """Writes a log of two evaluations, with a run_stop if `stop` has fields for it."""
    quality = {"BBOX_AP50": 0.7, "SEGM_AP50": 0.65, "AP50": 0.7, "epoch_num": 4}
    lines = [line("run_start"), line("eval_accuracy", 0.3, 60000, **quality)]
    lines += [line("run_stop", None, 120000, **stop)] if stop else []
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def begun(folder: pathlib.Path, asked: dict = ASKED) -> pathlib.Path:
    """Makes a folder like a benchmark's results, and returns its checkpoint."""
    assert nuclei.prepare(folder, asked)
    checkpoint = folder / "checkpoints" / "step-00000010"
    checkpoint.mkdir(parents=True)
    return checkpoint


@pytest.mark.parametrize(
    "stop",
    [{"status": "success"}, {"status": "aborted", "reason": "the target was not reached in 90 steps"}],
    ids=["target reached", "target missed"],
)
def test_a_finished_benchmark_is_not_trained_again(tmp_path, stop) -> None:
    checkpoint = begun(tmp_path / "ssd")
    write_log(tmp_path / "ssd" / "result_0.txt", **stop)
    assert not nuclei.prepare(tmp_path / "ssd", ASKED)
    assert checkpoint.is_dir() and (tmp_path / "ssd" / "result_0.txt").is_file()


@pytest.mark.parametrize(
    "stop",
    [None, {}, {"status": "aborted", "reason": "SIGTERM"}, {"status": "aborted", "reason": "out of memory"}],
    ids=["no log", "no end", "signal", "exception"],
)
def test_an_interrupted_benchmark_keeps_its_checkpoints_and_makes_room_for_a_log(tmp_path, stop) -> None:
    checkpoint = begun(tmp_path / "ssd")
    for times in (1, 2):
        if stop is not None:
            write_log(tmp_path / "ssd" / "result_0.txt", **stop)
        assert nuclei.prepare(tmp_path / "ssd", ASKED)
        assert checkpoint.is_dir() and not (tmp_path / "ssd" / "result_0.txt").exists()
        kept = list((tmp_path / "ssd").glob("interrupted_*.txt"))
        assert len(kept) == (0 if stop is None else times)


@pytest.mark.parametrize("other", [{"preset": "b"}, {"flags": []}])
def test_results_of_other_settings_are_moved_aside(tmp_path, other) -> None:
    moved = tmp_path / "ssd-before"
    (moved / "older").mkdir(parents=True)
    checkpoint = begun(tmp_path / "ssd", {**ASKED, **other})
    write_log(tmp_path / "ssd" / "result_0.txt", status="success")
    assert nuclei.prepare(tmp_path / "ssd", ASKED)
    assert not (moved / "older").exists()
    assert (moved / "result_0.txt").is_file() and (moved / "checkpoints" / checkpoint.name).is_dir()
    assert not checkpoint.exists() and json.loads((tmp_path / "ssd" / "asked.json").read_text()) == ASKED


def test_a_study_that_was_killed_in_its_second_benchmark_trains_only_that(tmp_path, monkeypatch) -> None:
    trained: list[str] = []

    def run(benchmark: str, data_dir: pathlib.Path, results: pathlib.Path, overrides: list[str]) -> None:
        trained.append(benchmark)
        folder = results / nuclei.SYSTEM / benchmark
        if trained == ["maskrcnn", "ssd"]:
            (folder / "checkpoints").mkdir()
            raise UserError("SIGTERM")
        assert benchmark != "ssd" or (folder / "checkpoints").is_dir()
        write_log(folder / "result_0.txt", status="success")

    monkeypatch.setattr(nuclei, "ROOT", tmp_path)
    monkeypatch.setattr(nuclei, "unpack", lambda _: tmp_path / "images")
    monkeypatch.setattr(nuclei, "convert", lambda *_: {"train": 8, "eval": 2})
    monkeypatch.setattr(nuclei, "_run", run)
    args = argparse.Namespace(tune=True, benchmark=None, overrides=[])
    with pytest.raises(UserError, match="SIGTERM"):
        nuclei.run(args)
    assert nuclei.run(args) == 0
    assert trained == ["maskrcnn", "ssd", "ssd"]


@pytest.mark.parametrize(
    ("flag", "message"), [("train_epoch=3", "no field 'train_epoch'"), ("seed=-1", "config.seed=-1: must be")]
)
def test_invalid_flags_are_refused_before_results_are_touched(flag, message) -> None:
    with pytest.raises(UserError, match=message):
        nuclei._asked("ssd", [f"--config.{flag}"])


def test_a_resumed_run_has_no_time_to_train(tmp_path) -> None:
    log = tmp_path / "result_0.txt"
    write_log(log, status="success")
    assert nuclei._row("ssd", tmp_path)["minutes"] == 2.0
    log.write_text(line("resumed_from_step", 7) + log.read_text())
    assert nuclei._row("ssd", tmp_path)["minutes"] == ""


def test_a_run_without_an_evaluation_is_one_line(tmp_path) -> None:
    log = tmp_path / "result_0.txt"
    write_log(log, status="aborted", reason="loss is nan at step 5")
    log.write_text("".join(x for x in log.read_text().splitlines(True) if "eval_accuracy" not in x))
    with pytest.raises(UserError, match="no evaluation; delete"):
        nuclei._row("ssd", tmp_path)


def test_a_real_log_of_mask_rcnn_is_a_result_and_stays(tmp_path, monkeypatch) -> None:
    """The log's quality is two values by name, not a number."""
    folder = tmp_path / nuclei.SYSTEM / "maskrcnn"
    real = ROOT / "lab/studies" / "nuclei" / "maskrcnn_result_0.txt"

    def train(command, **_: object) -> int:
        shutil.copy(real, folder / "result_0.txt")
        return 1

    monkeypatch.setattr(runner, "guarded", train)
    assert nuclei.prepare(folder, ASKED)
    nuclei._run("maskrcnn", tmp_path, tmp_path, [])
    row = nuclei._row("maskrcnn", folder)
    assert row["box_AP50"] >= 0.8 and row["mask_AP50"] >= 0.8 and row["reached"] and row["minutes"] == 11.3
    assert not nuclei.prepare(folder, ASKED)
