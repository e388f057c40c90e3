"""Tests the UCF101 study: its split, its rows, its paired tests and its tables; trains nothing."""

import argparse
import csv
import itertools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pytest

from common.errors import UserError
from lab.studies import runner, ucf101
from lab.studies import ucf101_report as report
from timetotrain.run import closed_division

GROUPS = {"test": ("g01", "g02"), "train": ("g08", "g10", "g11")}
CLASSES = ("Lunges", "PullUps")


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """The archive's list of clips, with two clips per group."""
    folder = tmp_path / "source"
    (folder / "metadata").mkdir(parents=True)
    lines = ["path,label,group,split"]
    for (split, groups), (number, label) in itertools.product(GROUPS.items(), enumerate(CLASSES)):
        for group, clip in itertools.product(groups, (1, 2)):
            lines.append(f"{label}/v_{label}_{group}_c0{clip}.mp4,{number},{group},{split}")
    (folder / "metadata" / "clips.csv").write_text("\n".join(lines) + "\n")
    return folder


def test_tuning_holds_out_groups_of_training_clips_and_sees_no_test_clip(source: pathlib.Path) -> None:
    final, tune = (ucf101.clips(source, part) for part in (False, True))
    assert [len(part) for part in final] == [12, 8] and [len(part) for part in tune] == [8, 4]
    assert [{row["split"] for row in part} for part in final] == [{"train"}, {"test"}]
    assert [{row["group"] for row in part} for part in tune] == [{"g08", "g11"}, {"g10"}]
    assert {row["label"] for part in final for row in part} == set(CLASSES)
    assert not set(ucf101.HELD_OUT) & {f"g{number:02}" for number in range(1, 8)}


def test_a_bad_list_of_clips_is_one_line(source: pathlib.Path) -> None:
    path = source / "metadata" / "clips.csv"
    path.write_text(path.read_text() + "Lunges/v_Lunges_g01_c09.mp4,0,g01,train\n")
    with pytest.raises(UserError, match="group g01 of Lunges is on both sides"):
        ucf101.clips(source, False)
    path.write_text("path,label\na/b.mp4,0\n")
    with pytest.raises(UserError, match="not the archive's list of clips"):
        ucf101.clips(source, False)


def made(overrides: Sequence[str] = (), tune: bool = False) -> runner.Runner:
    return runner.Runner(ucf101.study_of(tune, 528, 212), overrides=overrides)


def test_the_networks_differ_in_nothing_but_the_shift() -> None:
    table = ucf101.rows(made())
    assert [(row.model, row.seed) for row in table] == [(m, s) for s in (0, 1, 2) for m in ("tsm", "tsn")]
    assert len({row.id for row in table}) == 6
    both = [ucf101.configured([*row.flags, *made().extra], row.seed) for row in table[:2]]
    for config in both:
        config.validate()
        assert config.quality_target == 1 and config.system == ucf101.SYSTEM
    assert closed_division.overrides(*both) == {"model": "tsm"}
    assert table[0].settings == table[1].settings and "window=16" in table[0].settings


def test_other_settings_are_other_rows_and_where_they_come_from_is_no_setting(monkeypatch) -> None:
    ids = [row.id for row in ucf101.rows(made())]
    other = ucf101.rows(made(["--config.data.window=64"]))
    assert not set(ids) & {row.id for row in other} and "window=64" in other[0].settings
    preset = ucf101.PRESETS[ucf101.SYSTEM]
    for fields, same in (({"source": "elsewhere"}, True), ({"train_epochs": 7.0}, False)):
        changed = {**ucf101.PRESETS, ucf101.SYSTEM: preset.__class__(**{**vars(preset), **fields})}
        monkeypatch.setattr(ucf101, "PRESETS", changed)
        assert ([row.id for row in ucf101.rows(made())] == ids) is same


def test_the_flip_test_is_exact() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = rng.integers(-3, 4, 9).tolist()
        sizes = [abs(v) for v in values]
        sums = [
            abs(np.dot(signs, sizes)) >= abs(sum(values)) for signs in itertools.product((1, -1), repeat=9)
        ]
        assert report.flip_p_value(values) == pytest.approx(np.mean(sums), abs=1e-12)
    assert report.flip_p_value([]) == report.flip_p_value([0, 0]) == 1


@pytest.mark.parametrize(("better", "worse"), [(30, 12), (12, 30), (7, 7), (1, 0)])
def test_with_one_seed_the_flip_test_is_mcnemar_s_exact_test(better: int, worse: int) -> None:
    count, low = better + worse, min(better, worse)
    want = min(1.0, 2 * sum(math.comb(count, k) for k in range(low + 1)) / 2**count)
    got = report.flip_p_value([1] * better + [-1] * worse + [0] * 50)
    assert got == pytest.approx(want, rel=1e-12)


def predictions(right: Sequence[bool]) -> list[report.Prediction]:
    """Predictions for the eight test clips, in the order of their names."""
    names = [(c, f"v_{c}_{g}_c0{n}.mp4") for c in CLASSES for g in GROUPS["test"] for n in (1, 2)]
    other = dict(zip(CLASSES, reversed(CLASSES)))
    return [report.Prediction(n, c, c if hit else other[c]) for (c, n), hit in zip(names, right, strict=True)]


def finished(model: str, seed: int, right: Sequence[bool]) -> report.Run:
    (row,) = (row for row in ucf101.rows(made()) if (row.model, row.seed) == (model, seed))
    quality = sum(right) / len(right)
    record = {"quality": quality, "minutes": 8.0, "evaluations": [0.1, quality], "jobs": 2}
    return report.Run(row, record, [30, 60], predictions(right))


def test_clips_of_a_group_count_as_one_in_the_test_by_group() -> None:
    runs = [finished("tsm", 0, [True] * 8), finished("tsn", 0, [False] * 8), finished("tsm", 1, [True] * 8)]
    found = report.compare(runs)
    # Only seed 0 has both networks: 8 clips of 4 groups, all in favour of the first.
    assert (found.seeds, found.clips, found.groups, found.difference) == (1, 8, 4, 1.0)
    assert (found.by_clip, found.by_group) == (2 / 2**8, 2 / 2**4)
    assert report.compare(runs[::2]) is None
    runs = [finished(m, s, [m == "tsm" or s == 1] * 4 + [True] * 4) for m in ("tsm", "tsn") for s in (0, 1)]
    assert report.compare(runs).difference == 0.25


@pytest.fixture
def scripted(source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch) -> list[str]:
    """Replaces training: TSM is right about six of eight clips, TSN about three; returns the trained rows."""
    trained: list[str] = []
    right = {"tsm": [True] * 6 + [False] * 2, "tsn": [True] * 3 + [False] * 5}

    def train(self: runner.Runner, row: ucf101.Row) -> dict:
        if len(trained) == 3 and not (tmp_path / "once").exists():
            (tmp_path / "once").touch()
            raise UserError("SIGTERM")
        trained.append(row.id)
        values = [0.1] * 5 + [sum(right[row.model]) / 8]
        result = {"quality": values[-1], "evaluations": values, "minutes": 8.0, "diverged": False}
        return {
            **vars(row),
            **result,
            "flags": [*row.flags, *self.extra],
            "config": runner.identity(self.study, row, self.extra)[0],
            "version": runner.VERSION,
        }

    for module in (runner, ucf101):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(runner.Runner, "_train", train)
    monkeypatch.setattr(ucf101, "unpack", lambda _: source)
    monkeypatch.setattr(ucf101, "convert", lambda *_: tmp_path / "records")
    monkeypatch.setattr(ucf101, "predict", lambda config, *_: predictions(right[config.model]))
    return trained


def study(*flags: str) -> int:
    parser = argparse.ArgumentParser()
    ucf101.add_arguments(parser)
    return ucf101.run(parser.parse_args(flags))


def test_a_study_that_was_killed_goes_on_and_tells_the_networks_apart(
    scripted, tmp_path, monkeypatch, capsys
) -> None:
    with pytest.raises(UserError, match="SIGTERM"):
        study()
    assert 3 <= len(scripted) < 6
    assert study("--jobs=2") == 0 and len(scripted) == len(set(scripted)) == 6
    folder = tmp_path / "lab/studies" / "ucf101"
    text = capsys.readouterr().out
    assert "| tsm | 75.0% | 75.0% | 75.0% | 75.0% | 0.0 | 8.0 |" in text
    assert "TSM less TSN: +37.5 points of top-1, 8 clips, seeds: 3." in text
    assert f"p = {2 / 2**3:.2g} by clip, p = {2 / 2**2:.2g} by group (4 groups" in text
    assert "| Lunges | 100% | 75% |" in text and "| PullUps | 50% | 0% |" in text
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["top1"] for row in rows] == ["0.75", "0.375"] * 3 and rows[0]["jobs"] == "1"
    clips = list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))
    assert len(clips) == 8 and clips[0]["tsm-2"] == clips[0]["label"] == "Lunges"
    assert (folder / "curve.png").is_file()

    def never(*_: object) -> None:
        raise AssertionError("computed twice")

    monkeypatch.setattr(ucf101, "predict", never)
    assert study() == 0 and len(scripted) == 6


def test_a_part_of_the_runs_is_no_success(scripted, capsys) -> None:
    assert study("--models", "tsm", "--seeds=2") == 1 and len(scripted) == 2
    text = capsys.readouterr().out
    assert "| network | seed 0 | seed 1 | mean |" in text and "| tsn |" not in text.split("class")[0]
    with pytest.raises(UserError, match="--jobs=0"):
        study("--jobs=0")
    with pytest.raises(UserError, match="--seeds=4: must be 1..3"):
        study("--seeds=4")


def test_weights_of_another_run_are_refused(scripted, monkeypatch) -> None:
    monkeypatch.setattr(ucf101, "predict", lambda *_: predictions([True] * 8))
    with pytest.raises(UserError, match="top-1 is 1.0000, the run's was 0.7500"):
        study("--models", "tsm", "--seeds=1")


def test_every_try_is_kept_the_best_first(scripted, tmp_path) -> None:
    assert study("--tune", "--models", "tsn") == 0
    assert study("--tune", "--models", "tsm", "--", "--config.width=8", "--config.data.scales=1,0.5") == 0
    assert len(scripted) == 2
    lines = (tmp_path / "lab/studies" / "ucf101" / "tuning.csv").read_text().splitlines()
    assert lines[1].startswith("tsm,0,0.7500,8.0,") and "width=8" in lines[1]
    assert "data.scales=1.0,0.5" in lines[1]
    assert lines[2].startswith("tsn,0,0.3750,8.0,") and "width" not in lines[2]
    assert not (tmp_path / "lab/studies" / "ucf101" / "results.csv").exists()


def test_predictions_are_those_of_the_evaluation_clip_by_clip(tmp_path) -> None:
    """Uses real clips, real shards and a saved network of random weights, at a few pixels."""
    from common.data import videos as video
    from common.distributed import replicas
    from common.train import checkpoint
    from common.train.loop import Loop
    from common.train.probe import Probe
    from tests.tsm_kinetics.test_video import ramp
    from tsm_kinetics import convert
    from tsm_kinetics.task import Task

    for split, count in (("train", 4), ("validation", 7)):
        for number in range(count):
            label = CLASSES[number % 2]
            path = tmp_path / "videos" / split / label / f"v_{label}_g{number:02}_c01.mp4"
            path.parent.mkdir(parents=True, exist_ok=True)
            video.write(path, ramp(5 + 3 * number, 16, 20))
    splits = {s: (convert.items(tmp_path / "videos" / s), 2) for s in ("train", "validation")}
    convert.convert(tmp_path / "data", splits)
    small = {"width": 4, "blocks": "1,1,1,1", "image_size": 16, "precision": "fp32", "global_batch_size": 4}
    small |= {"num_train_examples": 4, "num_eval_examples": 7, "eval_batch_size": 4, "data__window": 8}
    flags = runner.settings(**small, data__eval_short_side=16, data__eval_size=16, num_classes=2)
    config = ucf101.configured([*runner.settings(model="tsm"), *flags], 0)
    task = Task(config, str(tmp_path / "data"))
    loop = Loop(task, replicas.make(config))
    checkpoint.save(loop, tmp_path / "saved")
    want = task.quality(*Probe(loop).evaluate()).value

    actual = ucf101.predict(config, tmp_path / "data", tmp_path / "saved")
    assert sorted(p.name for p in actual) == sorted(
        p.name for p in (tmp_path / "videos/validation").rglob("*.mp4")
    )
    assert all(p.label in p.name and p.group == p.name[: -len("_c01.mp4")] for p in actual)
    assert sum(p.correct for p in actual) / 7 == want
    with pytest.raises(UserError, match="weights are gone"):
        ucf101.predict(config, tmp_path / "data", tmp_path / "gone")
