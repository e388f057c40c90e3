"""Tests the contest of optimizers: equal effort, valid rows, winners, resuming and tables; trains nothing."""

import argparse
import csv
import importlib
import json
import pathlib

import pytest
import tensorflow as tf

from common.config import overrides as configs
from common.config.clock import Clock
from common.config.optimizer import LATER_OPTIMIZERS
from common.errors import UserError
from common.optim import schedules
from lab.bench import optimizers as bench
from lab.studies import __main__ as studies
from lab.studies import contest, contest_rows, optimizers, runner
from lab.studies import optimizers_report as report


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
            point = contest.scaled(arena, points[0], first, batch)
            assert point["rate"] == pytest.approx(points[0]["rate"] * (batch / first) ** 0.5)
            configured(arena, contest.flags(arena, entry, batch, point))
    others = {tuple(p["kept"] for p in contest.drawn(arena, e, first, 3, 0)) for e in arena.entries()}
    assert len(others) == 1, "all draw the same quantiles"


@pytest.mark.parametrize("name", contest.ARENAS)
def test_every_row_trains_at_its_batch_and_warms_up_within_its_run(name: str, monkeypatch) -> None:
    arena = contest.ARENAS[name]
    made = contest_rows.Contest(arena, arguments("--trials=2", "--seeds=1"))
    point = {"rate": 0.01, "kept": 0.9, "warmup": 0.2 * arena.epochs}
    monkeypatch.setattr(made, "winner", lambda entry, batch: point)

    def tuned(entry: contest.Entry, batch: int) -> list[contest.Row]:
        return [
            contest.Row("tune", entry.name, batch, 0, 0, point, contest.flags(arena, entry, batch, point))
        ]

    monkeypatch.setattr(made, "trials", tuned)
    monkeypatch.setattr(made, "best", lambda entry, batch: tuned(entry, batch)[0])
    monkeypatch.setattr(made, "record", lambda row: None)
    rows = made.rows(optimizers.NAMES, arena.batches, contest.STAGES)
    without = {stage for stage, flags in (("legw", arena.legw), ("decay", arena.decay)) if not flags}
    assert {row.stage for row in rows} == set(contest.STAGES) - without
    for row in rows:
        config = configured(arena, (*row.flags, *made.runner(row.stage).extra))
        assert config.global_batch_size == row.batch and config.micro_batch_size <= arena.micro, row.id
        epochs = arena.short_epochs if row.stage == "short" else arena.epochs
        assert config.train_epochs == epochs and config.schedule.warmup_epochs <= arena.epochs, row.id
    preset = importlib.import_module(f"{arena.benchmark}.presets").PRESETS[arena.preset]
    for row in (row for row in rows if row.stage == "legw" and row.optimizer == "legw"):
        root = (row.batch / arena.batches[0]) ** 0.5
        rate = configured(arena, row.flags).optimizer.base_learning_rate
        assert rate == pytest.approx(root * preset.optimizer.base_learning_rate)


@pytest.mark.parametrize("name", contest.ARENAS)
def test_a_short_trial_is_the_beginning_of_the_whole_one(name: str) -> None:
    arena = contest.ARENAS[name]
    made = contest_rows.Contest(arena, arguments())
    batch = arena.batches[-1]
    row = made.short(arena.entries()[0], batch)[2]
    short, whole = (configured(arena, (*row.flags, *made.runner(stage).extra)) for stage in ("short", "tune"))
    rates = []
    for config in (short, whole):
        clock = Clock.of(config)
        rate = schedules.learning_rate(
            config.schedule, config.optimizer.base_learning_rate, clock.steps_per_epoch, clock.train_steps
        )
        rates.append(rate(tf.range(Clock.of(short).train_steps)).numpy().tolist())
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)  # Decays end at a whole step.
    assert 0.2 < Clock.of(short).train_steps / Clock.of(whole).train_steps < 0.3


@pytest.fixture
def trained(tmp_path, monkeypatch) -> list[str]:
    """The ids of the rows that a fake run trains; trial 1 is the best, trial 2 diverges."""
    seen: list[str] = []

    def train(self: runner.Runner, row: contest.Row) -> dict:
        seen.append(row.id)
        quality = (
            {0: 0.9, 1: 0.99, 2: None}[row.number]
            if row.stage in ("short", "tune")
            else 0.98 + row.seed / 1000
        )
        made = {"quality": quality, "evaluations": [0.5, quality or 0.1], "minutes": 0.1, "diverged": False}
        about = {"config": runner.identity(self.study, row, self.extra)[0], "version": runner.VERSION}
        return {**contest.dataclasses.asdict(row), **made, "flags": [*row.flags, *self.extra], **about}

    for module in (runner, contest_rows):
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


def table(folder: pathlib.Path) -> list[dict[str, str]]:
    with (folder / "lab/studies/optimizers/mnist/results.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_winners_run_on_test_data_after_their_trials_and_a_study_goes_on(trained, tmp_path) -> None:
    words = ("--optimizers=adamw,muon,legw", "--trials=3", "--seeds=2", "--jobs=1")
    assert optimizers.run(arguments(*words, "--limit=4")) == 0
    assert trained == [f"short-adamw-128-{i}" for i in range(3)] + ["short-adamw-512-0"]
    assert optimizers.run(arguments(*words)) == 0
    # Each optimizer: three short trials, a whole one, one with a falling rate, one without warmup and two seeds at both
    # batches, two seeds scaled; LEGW: two seeds.
    assert len(trained) == len(set(trained)) == 2 * (2 * (3 + 1 + 1 + 1 + 2) + 2) + 2 * 2
    assert [i for i in trained if i.startswith("tune-adamw")] == ["tune-adamw-128-1", "tune-adamw-512-1"]
    rows = json.loads((tmp_path / "lab/studies/optimizers/mnist/results.json").read_text())
    assert len(rows) == len(trained)
    final = [i for i in trained if i.startswith("final-adamw-512")]
    assert final == ["final-adamw-512-0", "final-adamw-512-1"]
    assert trained.index(final[0]) > trained.index("tune-adamw-512-1") > trained.index("short-adamw-512-2")
    cells = table(tmp_path)
    assert [(c["optimizer"], c["batch"]) for c in cells] == [
        (n, b) for b in ("128", "512") for n in ("adamw", "legw", "muon")
    ]
    adamw = cells[3]
    assert (adamw["short trials"], adamw["best after 6 epochs"], adamw["within 1 %"]) == (
        "3",
        "0.99",
        "1 of 3",
    )
    assert (adamw["whole trials"], adamw["seeds"], adamw["hours of all"]) == ("1", "2", "0.02")
    assert adamw["accuracy, test"].startswith("0.9805 ± ")
    # The second evaluation of every run, after two epochs of 60,000 images.
    assert (adamw["steps to 0.97"], adamw["steps to 0.985"]) == ("236 ± 0", "none of 2")
    assert (tmp_path / "lab/studies/optimizers/mnist/steps.png").is_file()
    assert adamw["scaled from another batch"].startswith("0.9805")
    assert adamw["scaled from another batch"].endswith(" from 128")
    assert cells[0]["scaled from another batch"] == "" and cells[1]["short trials"] == ""
    before = len(trained)
    assert optimizers.run(arguments(*words)) == 0 and len(trained) == before


def test_steps_of_a_cell_without_final_runs_are_those_of_its_best_whole_run(trained, tmp_path) -> None:
    words = ("--optimizers=adamw", "--trials=2", "--jobs=1", "--batches=512")
    optimizers.run(arguments(*words, "--stages=short"))
    assert not (tmp_path / "lab/studies/optimizers/mnist/steps.png").exists()
    optimizers.run(arguments(*words, "--stages=tune,decay"))
    (cells,) = table(tmp_path)
    # 50,000 images; the run with a constant rate has 0.99, the other one 0.98.
    assert (cells["seeds"], cells["steps to 0.97"], cells["steps to 0.985"]) == ("", "196", "196")


def test_fewer_seeds_than_the_table_has_keep_the_table(trained, tmp_path) -> None:
    words = ("--optimizers=adamw", "--trials=1", "--jobs=1")
    optimizers.run(arguments(*words, "--batches=512", "--seeds=3", "--stages=short,tune,decay,final"))
    optimizers.run(arguments(*words, "--batches=128", "--seeds=1", "--stages=short,tune,decay,final"))
    rows = json.loads((tmp_path / "lab/studies/optimizers/mnist/results.json").read_text())
    seeds = [(row["batch"], row["seed"]) for row in rows if row["stage"] == "final"]
    assert seeds == [(128, 0), (512, 0), (512, 1), (512, 2)]


def test_one_winner_follows_one_trial(trained) -> None:
    words = (
        "--optimizers=adamw",
        "--trials=1",
        "--seeds=1",
        "--batches=512",
        "--stages=short,tune,decay,final",
    )
    optimizers.run(arguments(*words))
    assert trained == ["short-adamw-512-0", "tune-adamw-512-0", "decay-adamw-512-0", "final-adamw-512-0"]


def test_a_falling_rate_that_is_better_runs_on_test_data(trained, monkeypatch) -> None:
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments("--trials=1", "--seeds=1"))
    entry = contest.ENTRIES[0]
    for decayed, stage in ((0.95, "decay"), (0.85, "tune"), (None, "tune")):
        monkeypatch.setattr(
            made, "record", lambda row, q=decayed: {"quality": q if row.stage == "decay" else 0.9}
        )
        best = made.best(entry, 512)
        assert best.stage == stage
        (final,) = made.rows([entry.name], [512], ["final"])
        assert final.flags == best.flags and final.stage == "final"
        assert ("--config.schedule.kind=poly" in final.flags) == (stage == "decay")
    monkeypatch.setattr(made, "record", lambda row: None if row.stage == "decay" else {"quality": 0.9})
    assert made.best(entry, 512) is None and made.rows([entry.name], [512], ["final"]) == []
    free = next(e for e in contest.ENTRIES if e.name == "schedule_free_sgd")
    assert made.decayed(free, 512) == [] and made.best(free, 512).stage == "tune"


def test_the_best_run_of_any_batch_is_scaled_with_its_schedule(trained, capsys, tmp_path) -> None:
    words = ("--optimizers=adamw", "--trials=1", "--seeds=1", "--jobs=1")
    optimizers.run(arguments(*words, "--batches=128,512", "--stages=scaled", "--base=512"))
    assert "no scaled runs of adamw: their trials at 512 are not complete" in capsys.readouterr().out
    assert not (tmp_path / "lab/studies/optimizers/mnist/results.json").exists()
    optimizers.run(arguments(*words, "--batches=512", "--stages=short,tune,decay"))
    optimizers.run(arguments(*words, "--batches=128,512", "--stages=scaled", "--base=512"))
    assert trained[-1] == "scaled-adamw-128-from-512-0" and trained.count(trained[-1]) == 1
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments(*words, "--base=512"))
    entry = next(e for e in contest.ENTRIES if e.name == "adamw")
    (row,) = made.rows(["adamw"], [128], ["scaled"])
    tuned = made.best(entry, 512)
    assert row.point["rate"] == pytest.approx(tuned.point["rate"] / 2)
    assert row.point["warmup"] == pytest.approx(tuned.point["warmup"] / 4)
    assert tuned.stage == "decay" and configured(made.arena, row.flags).schedule.kind == "poly"
    before = len(trained)
    assert optimizers.run(arguments(*words, "--stages=short", "--batches=512")) == 0  # Publishes it again.
    assert len(trained) == before


def test_legw_is_chosen_as_an_optimizer_is(trained) -> None:
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments("--seeds=2"))
    assert made.rows(["adamw"], [128], ["legw"]) == []
    assert [row.id for row in made.rows(["legw"], [128], ["legw"])] == ["legw-legw-128-0", "legw-legw-128-1"]


def test_a_cell_is_drawn_if_all_of_its_runs_meet_the_first_target(trained) -> None:
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments("--trials=1", "--seeds=2"))
    point = made.short(contest.ENTRIES[1], 512)[0].point
    flags = contest.flags(made.arena, contest.ENTRIES[1], 512, point)
    rows = [contest.Row("final", "adam", 512, seed, seed, point, flags) for seed in range(2)]
    record = {"quality": 0.98, "flags": [*flags, *made.runner("final").extra]}
    both = [(row, {**record, "evaluations": [0.5, 0.975]}) for row in rows]
    assert report._curves(made, both) == {"adam": [(512, 236)]}
    assert report._curves(made, [both[0], (rows[1], {**record, "evaluations": [0.5, 0.96]})]) == {}


def test_the_better_run_repeats_without_its_warmup(trained, monkeypatch) -> None:
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments("--trials=1", "--seeds=1"))
    entry = contest.ENTRIES[0]
    assert made.without_warmup(entry, 512) == []
    monkeypatch.setattr(made, "record", lambda row: {"quality": 0.95 if row.stage == "decay" else 0.9})
    (row,) = made.rows([entry.name], [512], ["no-warmup"])
    best = made.best(entry, 512)
    cold, warm = (configured(made.arena, r.flags) for r in (row, best))
    assert cold.schedule == contest.dataclasses.replace(warm.schedule, warmup_epochs=0)
    assert cold.optimizer == warm.optimizer and warm.schedule.warmup_epochs > 0
    assert made.runner(row.stage) is made.runner("tune") and row.id == f"no-warmup-{entry.name}-512-0"


def test_one_in_six_goes_on(trained, monkeypatch) -> None:
    made = contest_rows.Contest(contest.ARENAS["mnist"], arguments("--trials=12"))
    entry = contest.ENTRIES[0]
    qualities = [0.1, None, 0.4, 0.9, 0.3, 0.2, 0.95, 0.1, 0.1, 0.1, 0.1, None]
    monkeypatch.setattr(made, "record", lambda row: {"quality": qualities[row.number]})
    assert [row.number for row in made.trials(entry, 512)] == [6, 3]
    assert made.winner(entry, 512) == made.short(entry, 512)[6].point
    monkeypatch.setattr(made, "record", lambda row: {"quality": None})
    assert made.trials(entry, 512) == [] and made.winner(entry, 512) is None
    monkeypatch.setattr(made, "record", lambda row: None)
    assert made.trials(entry, 512) == [] and made.winner(entry, 512) is None


def test_the_winner_s_flags_are_those_of_its_best_trial(trained) -> None:
    args = arguments(
        "--optimizers=adamw", "--trials=3", "--seeds=1", "--stages=short,tune,decay,final", "--batches=128"
    )
    optimizers.run(args)
    made = contest_rows.Contest(contest.ARENAS["mnist"], args)
    entry = next(e for e in contest.ENTRIES if e.name == "adamw")
    (final,) = made.rows(["adamw"], [128], ["final"])
    assert final.point == made.short(entry, 128)[1].point
    assert "--config.data.held_out=10000" in made.runner("tune").extra
    assert "--config.data.held_out=10000" not in made.runner("final").extra


def test_a_plan_has_the_hours_of_what_is_missing(trained, monkeypatch, capsys) -> None:
    monkeypatch.setattr(contest_rows.Contest, "step_seconds", lambda self, batch: 0.36)
    words = ("--optimizers=adamw,legw", "--trials=3", "--seeds=2", "--jobs=1", "--batches=512")
    assert optimizers.run(arguments(*words, "--plan")) == 0
    said = capsys.readouterr().out.splitlines()
    # 25 epochs of 60000 / 512 steps of 0.36 seconds, and a tenth for evaluations; trials have 50000 examples.
    one = 1.1 * 2930 * 0.36 / 3600
    short, tune = 1.1 * 586 * 0.36 / 3600, 1.1 * 2442 * 0.36 / 3600
    hours = 3 * short + 3 * tune + 3 * 2 * one
    assert said[2] == f"| 512 | 0.3600 | {one:.3f} | 12 | 0 | {hours:.1f} |"
    assert optimizers.run(arguments(*words, "--plan", "--base=512")) == 0
    hours -= 2 * one  # The other batch's best runs are not scaled for this one.
    assert capsys.readouterr().out.splitlines()[2] == f"| 512 | 0.3600 | {one:.3f} | 10 | 0 | {hours:.1f} |"
    assert not trained


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--arenas=imagenet",), "--arenas=imagenet: unknown imagenet"),
        (("--batches=100",), "--batches=100: unknown 100"),
        (("--optimizers=lion",), "--optimizers=lion: unknown lion"),
        (("--base=100",), "--base=100: unknown 100"),
        (("--base=0",), "--base=0: unknown 0"),
        (("--optimizers=legw-tuned",), "--optimizers=legw-tuned: mnist has nesterov, adam, "),
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
