"""Tests which runs the study of photographs trains, and its files; trains nothing."""

import argparse
import pathlib

import pytest

from common.errors import UserError
from lab.studies import resnet_photos as study
from lab.studies import runner
from tests.benchmarks import line

MISSED, DIVERGED = "the target was not reached in 90 steps", "loss is nan at step 5"


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Returns run(*ends), the study with runs of given endings, and the list of the seeds that it trains."""
    trained: list[int] = []
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(study, "FOLDER", tmp_path / "studies")
    monkeypatch.setattr(study, "unpack", lambda _: tmp_path / "cache" / "images")
    monkeypatch.setattr(study, "convert", lambda *_: None)

    def run(*ends: tuple[list[float], str], overrides: tuple[str, ...] = ()) -> None:
        def train(self, command, started=None, **options) -> int:
            flags = dict(word.lstrip("-").partition("=")[::2] for word in command)
            seed = int(flags["seed"])
            trained.append(seed)
            values, reason = ends[seed]
            folder = pathlib.Path(flags["result_dir"], "cpu-photos", "resnet")
            folder.mkdir(parents=True)
            lines = [line("run_start"), *(line("eval_accuracy", v, 1) for v in values)]
            status = "aborted" if reason else "success"
            lines.append(line("run_stop", None, 60000, status=status, reason=reason))
            (folder / "result_0.txt").write_text("".join(lines))
            if seed:  # The first run failed to draw its curve.
                (folder / "curve_0.png").touch()
            return int(bool(reason))

        monkeypatch.setattr(runner.Children, "run", train)
        assert study.run(argparse.Namespace(seeds=len(ends), tune=False, overrides=[*overrides])) == 0

    return run, trained


def test_a_row_a_run_and_one_that_diverged_says_so(photos, tmp_path, capsys) -> None:
    run, trained = photos
    ends = (([0.3, 0.61234], ""), ([0.5], MISSED), ([], DIVERGED), ([0.4], DIVERGED))
    for _ in range(2):  # The second call finds everything done.
        run(*ends)
        table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
        assert table[0] == "| seed | top-1 | minutes |" and table[2] == "| 0 | 0.6123 | 1.0 |"
        assert [row.split(" | ")[1] for row in table[2:]] == ["0.6123", "0.5000", "diverged", "diverged"]
    assert trained == [0, 1, 2, 3]
    assert len(list((tmp_path / "studies").glob("curve_*.png"))) == 3


@pytest.mark.parametrize("values", [[], [0.5]])
def test_a_run_that_an_exception_ended_is_not_published(photos, tmp_path, values) -> None:
    with pytest.raises(UserError, match="failed: no message"):
        photos[0]((values, "IndexError: out of range"))
    assert not (tmp_path / "studies").exists()


@pytest.mark.parametrize(
    ("seeds", "flag", "message"),
    [
        (0, "--config.seed=1", "--seeds=0: must be at least 1"),
        (1, "--config.train_epoch=3", "no field 'train_epoch'"),
        (1, "--config.seed=-1", "config.seed=-1: must be"),
    ],
)
def test_invalid_arguments_are_refused_before_a_run(photos, seeds, flag, message) -> None:
    run, trained = photos
    with pytest.raises(UserError, match=message):
        run(*[([0.61], "")] * seeds, overrides=(flag,))
    assert not trained


def test_a_conversion_that_fails_is_one_line(photos, monkeypatch) -> None:
    monkeypatch.setattr(study, "convert", runner.convert)
    monkeypatch.setattr(runner, "guarded", lambda _: 3)
    with pytest.raises(UserError, match="converting .* failed") as error:
        photos[0](([0.6], ""))
    assert error.value.exit_code == 3
