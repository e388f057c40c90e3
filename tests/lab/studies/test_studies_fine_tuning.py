"""Tests the study of fine-tuning: which photographs each run sees, and what its commands start from."""

import argparse

import pytest

from common.errors import UserError
from lab.studies import fine_tuning, runner

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
    source, commands, runs = photographs(tmp_path / "source", classes, 3), [], []
    monkeypatch.setattr(runner, "guarded", lambda command: commands.append(command) or 0)

    def run(name, records, work, epochs, classes, flags):
        runs.append((name, records, epochs, classes, flags))
        return {"run": name}

    monkeypatch.setattr(fine_tuning, "_run", run)
    work = tmp_path / "work"
    rows = fine_tuning.trained(source, work, OPTIONS)
    assert [row["run"] for row in rows] == ["pretraining", "from scratch", "fine-tuned"]
    (_, first, _, old, saving), (_, second, _, new, scratch), (_, third, epochs, _, flags) = runs
    assert old == classes[:15] and new == classes[15:] and second == third != first and epochs == 4.0
    assert saving == [f"--checkpoint_dir={work / 'checkpoints'}"] and scratch == []
    assert flags == [f"--init={work / 'checkpoints'}", "--frozen_stages=1"]
    count = {
        name: len(list((work / name / "photos" / "train").glob("*/*"))) for name in ("pretraining", "tuning")
    }
    assert count == {"pretraining": 15 * 3, "tuning": 5 * 2}
    assert len(list((work / "tuning" / "photos" / "val").glob("*/*"))) == 5 * 3
    assert [str(command[3]) for command in commands] == [str(first), str(second)]


def test_too_few_classes_are_one_line(tmp_path):
    source = photographs(tmp_path, ["a", "b"], 1)
    with pytest.raises(UserError, match="2 classes, more than 15 are needed"):
        fine_tuning.trained(source, tmp_path / "work", OPTIONS)
