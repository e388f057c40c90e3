"""Tests the study of fine-tuning: which photographs each run sees, and what its commands start from."""

import argparse

import pytest

from common.config import overrides as configs
from common.errors import UserError
from lab.studies import fine_tuning, runner
from resnet.presets import PRESETS

OPTIONS = argparse.Namespace(photos=2, pretrain_epochs=3.0, epochs=4.0, frozen_stages=1)


def photographs(folder, classes, each):
    for split in ("train", "val"):
        for name in classes:
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(each):
                (place / f"{i}.jpg").write_bytes(b"photo")
    return folder


def test_each_run_has_its_classes_and_only_the_last_starts_from_weights(tmp_path, monkeypatch):
    classes = [f"class{i:02d}" for i in range(20)]
    source, conversions, runs = photographs(tmp_path / "source", classes, 3), [], []
    monkeypatch.setattr(fine_tuning, "convert", lambda *command: conversions.append(command))
    monkeypatch.setattr(fine_tuning, "counts", lambda _: {"train": 40, "eval": 15})
    monkeypatch.setattr(runner, "ROOT", tmp_path)

    def train(self, row):
        runs.append((row.id, self.study.data().parent.name, configured(self, row), row.flags))
        identity = runner.identity(self.study, row, self.extra)[0]
        return {"quality": 0.5, "minutes": 1.0, "config": identity, "version": runner.VERSION}

    monkeypatch.setattr(runner.Runner, "_train", train)
    work = tmp_path / "work"
    rows = fine_tuning.trained(source, work, OPTIONS)
    assert [row["run"] for row in rows] == ["pretraining", "from scratch", "fine-tuned"]
    ids = [run[0] for run in runs]
    assert [name.rpartition("-")[0] for name in ids] == [
        "pretraining",
        "from-scratch",
        f"fine-tuned-{ids[0]}-1",
    ]
    assert [run[1] for run in runs] == ["data-pretraining", "data-2", "data-2"]
    assert [(run[2].num_classes, run[2].train_epochs) for run in runs] == [(15, 3.0), (5, 4.0), (5, 4.0)]
    start = f"--init={tmp_path / 'results/study-fine-tuning/checkpoints' / ids[0]}"
    assert [run[3] for run in runs] == [(), (), (start, "--frozen_stages=1")]
    photos = {path.name: len(list(path.glob("photos/train/*/*"))) for path in work.iterdir()}
    assert photos == {"data-pretraining": 15 * 3, "data-2": 5 * 2}
    assert len(list((work / "data-2/photos/val").glob("*/*"))) == 5 * 3
    # The second call finds everything done.
    assert fine_tuning.trained(source, work, OPTIONS) == rows and len(runs) == 3 and len(conversions) == 2
    # Another pretraining makes another start.
    fine_tuning.trained(source, work, argparse.Namespace(**{**vars(OPTIONS), "pretrain_epochs": 2.0}))
    assert len(runs) == len({run[0] for run in runs}) == 5


def configured(self, row):
    return configs.override_all(PRESETS["cpu-photos"], [*row.flags, *self.extra])


def test_too_few_classes_are_one_line(tmp_path):
    source = photographs(tmp_path, ["a", "b"], 1)
    with pytest.raises(UserError, match="2 classes, more than 15 are needed"):
        fine_tuning.trained(source, tmp_path / "work", OPTIONS)
