"""Tests the contest of optimizers: equal effort, valid rows, winners, resuming and tables; trains nothing."""

from __future__ import annotations

import argparse
import importlib
import json

import pytest

from common.config import overrides as configs
from common.config.validation import LATER_OPTIMIZERS
from common.errors import UserError
from lab.bench import optimizers as bench
from lab.studies import __main__ as studies
from lab.studies import contest, optimizers, runner


def arguments(*words: str) -> argparse.Namespace:
    return studies.parser().parse_args(["optimizers", *words])


def configured(arena: contest.Arena, run: tuple[str, ...]):
    preset = importlib.import_module(f"{arena.benchmark}.presets").PRESETS[arena.preset]
    config = configs.override_all(preset, [*run, "--config.division=open", "--config.quality_target=1"])
    config.validate()
    return config


@pytest.mark.parametrize("name", contest.ARENAS)
def test_every_optimizer_has_the_same_effort_and_valid_runs(name: str) -> None:
    arena, first = contest.ARENAS[name], contest.ARENAS[name].batches[0]
    for entry in arena.entries():
        for batch in (first, arena.batches[-1]):
            points = contest.drawn(arena, entry, batch, 4, 0)
            assert points[:2] == contest.drawn(arena, entry, batch, 2, 0)
            middle = entry.rate * (batch / first) ** 0.5
            for point in points:
                assert 1 / contest.RANGE <= point["rate"] / middle <= contest.RANGE
                assert contest.KEPT[0] <= point["kept"] <= contest.KEPT[1]
                assert 0 <= point["warmup"] <= contest.WARMUP[1] * arena.epochs
                run = contest.flags(arena, entry, batch, point)
                config = configured(arena, (*run, *arena.flags, *arena.validation[1]))
                assert config.global_batch_size == batch and config.micro_batch_size <= arena.micro
                assert getattr(config.optimizer, entry.kept) == pytest.approx(point["kept"], rel=1e-4)
            point = contest.scaled(arena, points[0], batch)
            assert point["rate"] == pytest.approx(points[0]["rate"] * (batch / first) ** 0.5)
            configured(arena, contest.flags(arena, entry, batch, point))
    others = {tuple(p["kept"] for p in contest.drawn(arena, e, first, 3, 0)) for e in arena.entries()}
    assert len(others) == 1, "all draw the same quantiles"


@pytest.mark.parametrize("name", contest.ARENAS)
def test_every_row_trains_at_its_batch_and_warms_up_within_its_run(name: str, monkeypatch) -> None:
    arena = contest.ARENAS[name]
    made = optimizers.Contest(arena, arguments("--trials=2", "--seeds=1"))
    point = {"rate": 0.01, "kept": 0.9, "warmup": 0.2 * arena.epochs}
    monkeypatch.setattr(made, "winner", lambda entry, batch: point)
    monkeypatch.setattr(made, "record", lambda row: None)
    rows = made.rows([e.name for e in arena.entries()], arena.batches, contest.STAGES)
    assert {row.stage for row in rows} == set(contest.STAGES) - ({"legw"} if not arena.legw else set())
    for row in rows:
        config = configured(arena, (*row.flags, *made.runner(row.stage).extra))
        assert config.global_batch_size == row.batch and config.micro_batch_size <= arena.micro, row.id
        assert config.schedule.warmup_epochs <= config.train_epochs == arena.epochs, row.id
    preset = importlib.import_module(f"{arena.benchmark}.presets").PRESETS[arena.preset]
    for row in (row for row in rows if row.stage == "legw" and row.optimizer == "legw"):
        root = (row.batch / arena.batches[0]) ** 0.5
        rate = configured(arena, row.flags).optimizer.base_learning_rate
        assert rate == pytest.approx(root * preset.optimizer.base_learning_rate)


@pytest.fixture
def trained(tmp_path, monkeypatch) -> list[str]:
    """The ids of the rows that a fake run trains; the best trial is number 1, and one diverges."""
    seen: list[str] = []

    def train(self: runner.Runner, row: optimizers.Row) -> dict:
        seen.append(row.id)
        quality = {0: 0.9, 1: 0.99, 2: None}[row.number] if row.stage == "tune" else 0.98 + row.seed / 1000
        made = {"quality": quality, "evaluations": [0.5, quality or 0.1], "minutes": 0.1, "diverged": False}
        about = {"config": runner.identity(self.study, row, self.extra)[0], "version": runner.VERSION}
        return {**made, "flags": [*row.flags, *self.extra], **about}

    for module in (runner, optimizers):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(runner.Runner, "_train", train)
    monkeypatch.setitem(
        contest.ARENAS,
        "mnist",
        contest.dataclasses.replace(
            contest.ARENAS["mnist"],
            batches=(128, 512),
            validation=(lambda: tmp_path, contest.ARENAS["mnist"].validation[1]),
            test=(lambda: tmp_path, ()),
        ),
    )
    return seen


def test_winners_run_on_test_data_after_their_trials_and_a_study_goes_on(trained, tmp_path) -> None:
    words = ("--optimizers=adamw,muon", "--trials=3", "--seeds=2", "--jobs=1")
    assert optimizers.run(arguments(*words, "--limit=4")) == 0
    assert trained == [f"tune-adamw-128-{i}" for i in range(3)] + ["tune-adamw-512-0"]
    assert optimizers.run(arguments(*words)) == 0
    assert len(trained) == len(set(trained)) == 2 * 2 * (3 + 2) + 2 * 2 + 2 * 2
    rows = json.loads((tmp_path / "lab/studies/optimizers/mnist/results.json").read_text())
    assert len(rows) == len(trained)
    final = [i for i in trained if i.startswith("final-adamw-512")]
    assert final == ["final-adamw-512-0", "final-adamw-512-1"]
    assert trained.index(final[0]) > trained.index("tune-adamw-512-2")
    table = (tmp_path / "lab/studies/optimizers/mnist/results.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]
    assert [(c[0], c[1]) for c in cells] == [
        (n, b) for b in ("128", "512") for n in ("adamw", "legw", "muon")
    ]
    adamw = cells[3]
    assert adamw[2:5] == ["3", "0.99", "1 of 3"] and adamw[7].startswith("0.9805 ± ")
    assert adamw[8].startswith("0.9805") and cells[0][8] == ""
    before = len(trained)
    assert optimizers.run(arguments(*words)) == 0 and len(trained) == before


def test_one_winner_follows_one_trial(trained) -> None:
    words = ("--optimizers=adamw", "--trials=1", "--seeds=1", "--batches=512", "--stages=tune,final")
    optimizers.run(arguments(*words))
    assert trained == ["tune-adamw-512-0", "final-adamw-512-0"]


def test_the_winner_s_flags_are_those_of_its_best_trial(trained) -> None:
    args = arguments("--optimizers=adamw", "--trials=3", "--seeds=1", "--stages=tune,final", "--batches=128")
    optimizers.run(args)
    made = optimizers.Contest(contest.ARENAS["mnist"], args)
    entry = next(e for e in contest.ENTRIES if e.name == "adamw")
    (final,) = made.rows(["adamw"], [128], ["final"])
    assert final.point == made.trials(entry, 128)[1].point
    assert "--config.data.held_out=10000" in made.runner("tune").extra
    assert "--config.data.held_out=10000" not in made.runner("final").extra


def test_a_plan_has_the_hours_of_what_is_missing(trained, monkeypatch, capsys) -> None:
    monkeypatch.setattr(optimizers.Contest, "step_seconds", lambda self, batch: 0.36)
    words = ("--optimizers=adamw", "--trials=3", "--seeds=2", "--jobs=1", "--batches=512")
    assert optimizers.run(arguments(*words, "--plan")) == 0
    said = capsys.readouterr().out.splitlines()
    # 25 epochs of 60000 / 512 steps of 0.36 seconds, and a tenth for evaluations; 3 trials, 2 seeds of three stages.
    one = 1.1 * 2930 * 0.36 / 3600
    assert said[3] == f"| 512 | 0.3600 | {one:.3f} | 9 | 0 | {9 * one:.1f} |"
    assert not trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arenas=imagenet",), "--arenas=imagenet: unknown imagenet"),
        (("--batches=100",), "--batches=100: unknown 100"),
        (("--optimizers=lion",), "--optimizers=lion: unknown lion"),
        (("--trials=0",), "--trials=0: must be at least 1"),
    ],
)
def test_a_wrong_word_is_one_line(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        optimizers.run(arguments(*words))


@pytest.mark.parametrize("network", bench.PRESETS)
def test_the_rows_of_the_bench_are_valid(network: str) -> None:
    names = bench.names(network)
    assert names[0] in ("momentum", "adam") and set(LATER_OPTIMIZERS) <= set(names)
    made = [bench.config_of(network, name).optimizer for name in names]
    assert [o.name for o in made if o.name != "sgd"] == [
        n for n in names if n not in ("momentum", "nesterov")
    ]
    assert all(o.base_learning_rate == bench.RATE for o in made)
