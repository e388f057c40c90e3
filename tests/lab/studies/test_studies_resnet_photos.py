"""Tests which runs the study of photographs publishes, and its files; trains nothing."""

import argparse
import csv
import json
import pathlib

import pytest

from common.errors import UserError
from lab.studies import resnet_photos as study
from lab.studies import runner
from tests.benchmarks import line

MISSED, DIVERGED = "the target was not reached in 90 steps", "loss is nan at step 5"


def write_run(folder: pathlib.Path, seed: int, values: list[float], reason: str) -> None:
    """Writes a log of a minute, its record and its curve, like those of timetotrain/run/run.py."""
    status = "aborted" if reason else "success"
    lines = [line("run_start"), *(line("eval_accuracy", v, 1) for v in values)]
    lines.append(line("run_stop", None, 60000, status=status, reason=reason))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"result_{seed}.txt").write_text("".join(lines))
    path = folder / "run.json"
    runs = json.loads(path.read_text())["runs"] if path.exists() else {}
    quality = values[-1] if values else None
    runs[f"result_{seed}.txt"] = {"seed": seed, "quality": quality, "quality_target": 0.55, "status": status}
    runs[f"result_{seed}.txt"]["digest"] = "0123456789abcdef"
    path.write_text(json.dumps({"schema": 1, "runs": runs}))
    if seed:  # The first run failed to draw its curve.
        (folder / f"curve_{seed}.png").touch()


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Returns run(*ends), the study with runs of given endings, which returns the folder of its files."""
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "FOLDER", tmp_path / "studies")
    monkeypatch.setattr(study, "unpack", lambda _: tmp_path / "cache" / "images")
    monkeypatch.setattr(study, "convert", lambda *_: None)

    def run(*ends: tuple[list[float], str]) -> pathlib.Path:
        def train(command, env) -> int:
            for seed, (values, reason) in enumerate(ends):
                write_run(pathlib.Path(env["RESULT_DIR"], env["SYSTEM"], "resnet"), seed, values, reason)
            return 1

        monkeypatch.setattr(runner, "guarded", train)
        assert study.run(argparse.Namespace(seeds=len(ends), tune=False, overrides=[])) == 0
        return tmp_path / "studies"

    return run


def test_a_row_a_run_and_one_that_diverged_says_so(photos, capsys) -> None:
    folder = photos(([0.3, 0.61234], ""), ([0.5], MISSED), ([], DIVERGED), ([0.4], DIVERGED))
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["top1"] for row in rows] == ["0.6123", "0.5", "diverged", "diverged"]
    assert [row["status"] for row in rows] == ["success", "aborted", "aborted", "aborted"]
    assert {(row["target"], row["minutes"], row["digest"]) for row in rows} == {
        ("0.55", "1.0", "0123456789ab")
    }
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert table[:2] == ["| seed | top1 | target | status | minutes | digest |", "|---|---|---|---|---|---|"]
    assert table[2] == "| 0 | 0.6123 | 0.55 | success | 1.0 | 0123456789ab |" and len(table) == 6
    assert len(list(folder.glob("curve_*.png"))) == 3


@pytest.mark.parametrize("values", [[], [0.5]])
def test_a_run_that_an_exception_ended_is_not_published(photos, tmp_path, values) -> None:
    with pytest.raises(UserError, match="resnet: the run failed; see above"):
        photos(([0.6], ""), (values, "IndexError: out of range"))
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    ("seeds", "flag", "message"),
    [
        (0, "--config.seed=1", "--seeds=0: must be at least 1"),
        (1, "--config.train_epoch=3", "no field 'train_epoch'"),
        (1, "--config.seed=-1", "config.seed=-1: must be"),
    ],
)
def test_invalid_arguments_are_refused_before_logs_are_touched(
    photos, tmp_path, seeds, flag, message
) -> None:
    photos(([0.61], ""))
    (log,) = tmp_path.glob("results/*/*/*/result_0.txt")
    with pytest.raises(UserError, match=message):
        study.run(argparse.Namespace(seeds=seeds, tune=False, overrides=[flag]))
    assert log.is_file()


def test_the_logs_of_the_last_call_stay_until_the_next(photos, tmp_path) -> None:
    for value in (0.6, 0.61, 0.62):
        photos(([value], ""))
    assert [p.parts[-4] for p in tmp_path.glob("results/*/*/*/result_0.txt") if "0.61" in p.read_text()] == [
        "study-resnet-photos-all-before"
    ]


def test_a_conversion_that_fails_is_one_line(photos, monkeypatch) -> None:
    monkeypatch.setattr(runner, "guarded", lambda _: 3)
    monkeypatch.setattr(study, "convert", runner.convert)
    with pytest.raises(UserError, match="converting .* failed") as error:
        study.run(argparse.Namespace(seeds=1, tune=False, overrides=[]))
    assert error.value.exit_code == 3
