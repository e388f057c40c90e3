"""Tests the rows of a LEGW study, its resumption row by row, and its files; trains nothing."""

import argparse
import dataclasses
import importlib
import json
import math
import shutil
import threading
import time

import pytest

from common.config import overrides as configs
from common.config.schema import RunConfig
from common.errors import UserError
from lab.studies import legw, legw_report, runner
from lab.studies.legw_values import MNIST, PTB

STUDIES = [MNIST, PTB]


def configured(study: legw.Study, row: legw.Row) -> RunConfig:
    """The configuration that a row's flags give."""
    module = importlib.import_module(f"{study.benchmark}.presets")
    config = configs.override_all(module.PRESETS[study.preset], row.flags)
    config.validate()
    return config


def every_row(study: legw.Study) -> list[legw.Row]:
    return [*legw.rows(study), *legw.long_rows(study, 0.1), *legw.tune_rows(study)]


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_the_study_starts_from_the_preset(study) -> None:
    base = importlib.import_module(f"{study.benchmark}.presets").PRESETS[study.preset]
    assert (base.global_batch_size, base.optimizer.base_learning_rate) == (study.batch, study.rate)


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_every_row_is_a_sound_configuration_with_an_id_of_its_own(study) -> None:
    table = every_row(study)
    assert len({row.id for row in table}) == len(table)
    for row in table:
        config = configured(study, row)
        assert config.global_batch_size == row.batch, row.id
        if row.rate is not None:
            assert config.optimizer.base_learning_rate == pytest.approx(row.rate), row.id
        if row.part == "long":
            assert config.train_epochs == study.long_epochs


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_methods_scale_as_their_names_say(study) -> None:
    for row in legw.rows(study):
        if row.part != "methods":
            continue
        k, config = row.batch / study.batch, configured(study, row)
        rate, schedule = config.optimizer.base_learning_rate, config.schedule
        factor = {"legw": math.sqrt(k), "unscaled": 1.0}.get(row.method, k)
        if row.method != "adam":
            assert rate == pytest.approx(study.rate * factor), row.id
        else:
            assert (config.optimizer.name, rate) == ("adam", 0.001)
        assert ("poly" in row.method) == (schedule.kind == "poly")
        base = importlib.import_module(f"{study.benchmark}.presets").PRESETS[study.preset].schedule
        warmup = {"legw": base.warmup_epochs * k, "linear-poly-warmup": 5.0}.get(row.method, 0.0)
        assert schedule.warmup_epochs == pytest.approx(warmup), row.id


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_both_ends_of_legw_have_three_seeds_and_come_first(study) -> None:
    ours = [row for row in legw.rows(study) if row.asked_as == "legw"]
    assert ours == list(legw.rows(study))[: len(ours)]
    seeds = {row.batch: sum(r.batch == row.batch for r in ours) for row in ours}
    ends = (study.batch, study.batch * study.largest)
    assert all(count == (3 if batch in ends else 1) for batch, count in seeds.items())
    assert len(seeds) == len(study.factors)


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_tuning_never_sees_the_test_set(study) -> None:
    for row in legw.tune_rows(study):
        data = configured(study, row).data
        assert getattr(data, "held_out", 0) > 0 or getattr(data, "eval_split", "test") == "valid"


@pytest.mark.parametrize("study", STUDIES, ids=lambda s: s.name)
def test_choosing_a_warmup_leaves_the_runs_that_chose_it(study, monkeypatch) -> None:
    """Tuning rows state their warmup, so that the table stays complete when the preset takes the best one."""
    before = [runner.identity(study, row) for row in legw.tune_rows(study)]
    presets = importlib.import_module(f"{study.benchmark}.presets").PRESETS
    schedule = dataclasses.replace(presets[study.preset].schedule, warmup_epochs=0.3)
    monkeypatch.setitem(presets, study.preset, dataclasses.replace(presets[study.preset], schedule=schedule))
    assert [runner.identity(study, row) for row in legw.tune_rows(study)] == before


@pytest.fixture
def study(tmp_path, monkeypatch) -> legw.Study:
    """A study in its own folder with free runs, whose quality is the row's rate."""
    monkeypatch.setattr(legw, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    trained: list[str] = []

    def train(self: runner.Runner, row: legw.Row) -> dict:
        trained.append(row.id)  # A list's append needs no lock.
        rate = row.rate or 0.001
        quality = {"quality": None if rate > 1 else 0.9 + rate / 10, "diverged": rate > 1}
        result = {"evaluations": [0.5, 0.9], "minutes": 0.1, **quality}
        return {
            **dataclasses.asdict(row),
            **result,
            "config": runner.identity(self.study, row, self.extra)[0],
            "version": runner.VERSION,
        }

    monkeypatch.setattr(runner.Runner, "_train", train)
    small = dataclasses.replace(MNIST, factors=(1, 64), compared=(64, 1), data=lambda: tmp_path)
    object.__setattr__(small, "trained", trained)
    return small


def flags(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    legw.add_arguments(parser)
    return parser.parse_args(argv)


def test_a_study_resumes_row_by_row_and_runs_the_long_ones_last(study, tmp_path, capsys) -> None:
    assert legw.run(study, flags("--limit=3")) == 0
    assert len(study.trained) == 3
    legw.run(study, flags())
    runs = {runner.identity(study, row) for row in legw.rows(study)}
    assert len(study.trained) == len(set(study.trained)) == len(runs) + 2
    assert set(study.trained[-2:]) == {"long-legw-8192-0.32-0", "long-tuned-8192-0.64-0"}
    legw.run(study, flags())
    assert len(set(study.trained)) == len(study.trained)
    folder = tmp_path / "lab/studies" / "legw-mnist"
    assert len(json.loads((folder / "results.json").read_text())) == len(list(legw.rows(study))) + 2
    assert {p.name for p in folder.glob("*.png")} == {"methods.png", "rates.png", "long.png"}
    text = capsys.readouterr().out
    assert "| legw | 0.904 ± 0 (3) | 0.932 ± 0 (3) |" in text and "diverged" in text


def test_a_run_that_two_figures_ask_for_is_trained_once(study, tmp_path) -> None:
    legw.run(study, flags())
    assert "methods-legw-128-0.04-0" in study.trained and "solvers-momentum-128-0" not in study.trained
    table = json.loads((tmp_path / "lab/studies" / "legw-mnist" / "results.json").read_text())
    (solver,) = (row for row in table if (row["part"], row["method"]) == ("solvers", "momentum"))
    base = table[0]
    assert (base["method"], base["batch"], base["seed"]) == ("legw", 128, 0)
    assert solver["quality"] == base["quality"] and solver["rate"] is None


def test_no_run_starts_after_the_time(study) -> None:
    legw.run(study, flags("--minutes=1e-9"))
    assert study.trained == []


def test_tuning_writes_a_table_of_its_own(study, tmp_path, capsys) -> None:
    legw.run(study, flags("--tune"))
    assert len(study.trained) == 5 + 3 * 2 + 4 + 3 and all(name.startswith("tune-") for name in study.trained)
    folder = tmp_path / "lab/studies" / "legw-mnist"
    assert (folder / "tune.json").is_file()
    text = capsys.readouterr().out
    assert "| tune | warmup-0.05 | 8192 | 0.32 | 0.932 |" in text
    assert "| tune | with-clip-1 | 8192 |" in text
    assert "| 0.01 | 0.901 |" in text and "| 0.02 | 0.902 ± 0 (3) |" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "no record of this study"), ('{"version": 0, "config": ""}', "written by another version")],
)
def test_rows_of_another_version_are_one_line(study, tmp_path, content, message) -> None:
    row = next(iter(legw.rows(study)))
    path = tmp_path / "results" / "study-legw-mnist" / "rows" / f"{row.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        legw.run(study, flags())
    assert str(path) in str(error.value)


def test_a_row_of_another_preset_is_refused(study, monkeypatch) -> None:
    """The flags are equal, but the preset makes another run of them."""
    legw.run(study, flags("--limit=1"))
    presets = importlib.import_module("mnist.presets").PRESETS
    monkeypatch.setitem(presets, "cpu-128", dataclasses.replace(presets["cpu-128"], lstm_units=64))
    with pytest.raises(UserError, match="written by another version"):
        legw.run(study, flags("--list"))


def test_unknown_parts_are_one_line(study) -> None:
    with pytest.raises(UserError, match="--parts=figures: unknown figures; known: legw, competitors"):
        legw.run(study, flags("--parts=figures"))


def test_parts_add_up_to_one_table(study, capsys) -> None:
    legw.run(study, flags("--parts=legw", "--jobs=1"))
    assert len(study.trained) == 6
    legw.run(study, flags("--parts=competitors"))
    assert not any(name.startswith(("rates", "solvers", "long")) for name in study.trained)
    text = capsys.readouterr().out
    assert "| legw |" in text and "| linear-poly |" in text


def test_a_study_goes_on_from_what_is_published(study, tmp_path) -> None:
    legw.run(study, flags("--parts=legw"))
    before = len(study.trained)
    shutil.rmtree(tmp_path / "results")
    legw.run(study, flags("--published"))
    everything = {runner.identity(study, row) for row in legw.rows(study)}
    assert len(set(study.trained)) == len(study.trained) == len(everything) + 2 and before == 6


def test_going_on_from_nothing_is_one_line(study, tmp_path) -> None:
    with pytest.raises(UserError, match="results.json: no table of this study .*move it away"):
        legw.run(study, flags("--published"))


def test_a_table_of_another_version_is_neither_used_nor_lost(study, tmp_path) -> None:
    table = tmp_path / "lab/studies" / "legw-mnist" / "results.json"
    table.parent.mkdir(parents=True)
    table.write_text('[{"version": 1, "config": "", "seed": 0}]')
    for flag in ("--published", "--parts=legw"):
        with pytest.raises(UserError, match="written by another version of the study; move it away"):
            legw.run(study, flags(flag))
    assert study.trained == [] and table.read_text().startswith('[{"version": 1')


@pytest.mark.parametrize("tune", [(), ("--tune",)], ids=["results", "tune"])
def test_a_table_of_another_configuration_is_neither_mixed_nor_lost(study, tmp_path, tune) -> None:
    legw.run(study, flags(*tune, "--limit=2"))
    folder = tmp_path / "lab/studies" / "legw-mnist"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    shutil.rmtree(tmp_path / "results")
    message = (
        f"{'tune' if tune else 'results'}.json: 2 of its runs have another configuration .* would be lost"
    )
    with pytest.raises(UserError, match=message):
        legw.run(study, flags(*tune, "--limit=1", "--", "--config.precision=bf16"))
    assert len(study.trained) == 2 and before == {p.name: p.read_bytes() for p in folder.iterdir()}


def test_a_negative_limit_is_refused(study, capsys) -> None:
    with pytest.raises(SystemExit):
        flags("--limit=-1")
    assert "'-1' is not a whole number of at least 0" in capsys.readouterr().err


def test_a_table_keeps_its_long_runs(study, tmp_path) -> None:
    legw.run(study, flags())
    table = tmp_path / "lab/studies" / "legw-mnist" / "results.json"
    before = json.loads(table.read_text())
    shutil.rmtree(tmp_path / "results")
    legw.run(study, flags("--parts=solvers", "--limit=1"))
    after = json.loads(table.read_text())
    assert sum(r["part"] == "long" for r in after) == 2 and len(after) == len(before)


def test_long_runs_alone_say_what_they_wait_for(study, capsys) -> None:
    legw.run(study, flags("--parts=long"))
    assert study.trained == [] and 'part "long" waits for all runs of "rates"' in capsys.readouterr().out


@pytest.mark.parametrize("flag", ["--jobs=0", "--minutes=0"])
def test_a_number_that_is_not_above_zero_is_one_line(study, flag) -> None:
    with pytest.raises(UserError, match=f"{flag}: must be above 0"):
        legw.run(study, flags(flag))


def test_a_cell_says_how_many_runs_diverged() -> None:
    assert legw_report.cell([0.5, None, 0.7]) == "0.6 ± 0.14 (2), 1 diverged"
    assert [legw_report.cell(q) for q in ([None, None], [0.5], [])] == ["diverged", "0.5", ""]


def test_a_failed_run_is_noticed_while_an_earlier_one_still_trains(study, monkeypatch) -> None:
    failed = threading.Event()

    def train(self: runner.Runner, row: legw.Row) -> dict:
        study.trained.append(row.id)
        if len(study.trained) == 2:
            failed.set()
            raise UserError("out of memory")
        assert failed.wait(60)
        time.sleep(0.2)  # Long enough for the other thread to begin a run that it should not.
        return whole(self, row)

    whole = runner.Runner._train
    monkeypatch.setattr(runner.Runner, "_train", train)
    with pytest.raises(UserError, match="out of memory"):
        legw.run(study, flags("--jobs=2"))
    assert len(set(study.trained)) == 2  # The list names the finished run twice.


def test_another_base_rate_has_a_table_of_its_own(study, tmp_path) -> None:
    legw.run(study, flags("--base_rate=0.1", "--base_warmup=0.2"))
    folder = tmp_path / "lab/studies" / "legw-mnist" / "at-0.1"
    runs = json.loads((folder / "results.json").read_text())
    assert {run["method"] for run in runs} == {"legw"} and not (folder.parent / "results.json").exists()
    for run in runs:
        k = run["batch"] // study.batch
        row = legw.Row(*(run[name] for name in ("part", "method", "batch", "rate", "seed", "flags")))
        config = configured(study, row)
        assert config.optimizer.base_learning_rate == pytest.approx(0.1 * math.sqrt(k)) == row.rate
        assert config.schedule.warmup_epochs == pytest.approx(0.2 * k)
    # Of another warmup, under the same name.
    shutil.rmtree(tmp_path / "results")
    with pytest.raises(UserError, match="have another configuration"):
        legw.run(study, flags("--base_rate=0.1", "--base_warmup=0.1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base_warmup=0.1"], "--base_warmup needs --base_rate"),
        (["--base_rate=0"], "--base_rate=0.0: must be above 0"),
        (["--base_rate=0.1", "--base_warmup=-1"], "--base_warmup=-1: must be at least 0"),
        (["--base_rate=0.1", "--tune"], "goes with --parts=legw,competitors only"),
        (["--base_rate=0.1", "--parts=legw,rates"], "goes with --parts=legw,competitors only"),
    ],
)
def test_a_base_rate_that_means_nothing_is_one_line(study, arguments, message) -> None:
    with pytest.raises(UserError, match=message):
        legw.run(study, flags(*arguments))
    assert study.trained == []
