"""Tests the runs and the table of the study of LARS's two momenta; trains nothing."""

import argparse
import csv
import dataclasses
import shutil

import pytest

from common.config import overrides as configs
from common.config.schema import RunConfig
from lab.studies import lars_momentum as study
from lab.studies import runner
from resnet.presets import PRESETS


def configured(row: study.Row) -> RunConfig:
    config = configs.override_all(PRESETS[study.STUDY.preset], [*study.STUDY.flags, *row.flags])
    config.validate()
    return config


def test_the_forms_differ_as_table_1_says() -> None:
    by_form = {row.form: configured(row) for row in study.rows() if row.seed == 0}
    scaled, unscaled, tuned = (by_form[name] for name in ("scaled", "unscaled", "unscaled-tuned"))
    assert scaled.optimizer.scaled_momentum and not unscaled.optimizer.scaled_momentum
    assert dataclasses.replace(
        scaled, optimizer=dataclasses.replace(scaled.optimizer, scaled_momentum=False)
    ) == dataclasses.replace(unscaled)
    rate = tuned.optimizer.base_learning_rate / unscaled.optimizer.base_learning_rate
    assert rate == pytest.approx(29.0 / 31.2, abs=1e-4) and tuned.optimizer.momentum == 0.929
    assert tuned.schedule.warmup_epochs == round(unscaled.schedule.warmup_epochs * 18 / 25, 2)
    assert all(c.optimizer.name == "lars" and c.global_batch_size == study.BATCH for c in by_form.values())


def test_every_form_has_three_seeds() -> None:
    table = study.rows()
    assert len({row.id for row in table}) == len(table) == 9
    assert {row.seed for row in table} == {0, 1, 2}


def test_the_study_resumes_and_compares_with_the_paper(tmp_path, monkeypatch, capsys) -> None:
    trained = []

    def train(self: runner.Runner, row: study.Row) -> dict:
        trained.append(row.id)
        reached = {"scaled": 5, "unscaled": 3 + row.seed, "unscaled-tuned": 99}[row.form]
        values = [0.5] * min(reached - 1, 8) + [0.97] * (reached < 9)
        made = {
            "flags": self.extra,
            "evaluations": values,
            "quality": values[-1],
            "minutes": 0.1,
            "diverged": False,
        }
        return {**made, "config": runner.identity(self.study, row, self.extra)[0], "version": runner.VERSION}

    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(runner.Runner, "_train", train)
    monkeypatch.setattr(study, "STUDY", dataclasses.replace(study.STUDY, data=lambda: tmp_path))
    parser = argparse.ArgumentParser()
    study.add_arguments(parser)
    assert study.run(parser.parse_args(["--limit=4"])) == 0 and len(trained) == 4
    assert study.run(parser.parse_args(["--jobs=2"])) == 0 and sorted(trained) == sorted(
        r.id for r in study.rows()
    )
    folder = tmp_path / "lab/studies" / "lars-momentum"
    text = capsys.readouterr().out
    # Evaluations come every 16 steps of 256 of 4,000 pictures, 1.024 epochs.
    assert "| scaled | 2.5 | 5.26 | 0.9 | 5.1 | 5.1 | 5.1 | 5.1 | 72.8 |" in text
    assert "| 0.9 | 3.1 | 4.1 | 5.1 | 4.1 | 70.6 |" in text
    assert "| 0.929 | not in 8.2 | not in 8.2 | not in 8.2 |  | 64 |" in text
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert len(rows) == 9 and rows[0]["epochs"] == "5.12"
    # A partial table does not replace the complete one.
    shutil.rmtree(tmp_path / "results")
    assert study.run(parser.parse_args(["--limit=2"])) == 0
    assert len((folder / "results.csv").read_text().splitlines()) == 1 + 9
    part = list(csv.reader((tmp_path / "results" / "study-lars-momentum" / "results.csv").open()))
    assert len(part) == 1 + 2


def test_the_last_evaluation_comes_after_all_epochs() -> None:
    record = {"flags": study.STUDY.flags, "evaluations": [0.5] * 16}
    found = study.evaluated_at(record)
    assert [found[0], found[14], found[15]] == [1.024, 15.36, 16.0]
