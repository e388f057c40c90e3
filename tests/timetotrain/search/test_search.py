"""Tests the search on a benchmark with free runs: resuming, grids, objectives, failed runs, and full disks."""

import pathlib
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator

import optuna
import pytest

from mnist.presets import PRESETS
from tests.benchmarks import wait_for
from tests.timetotrain.search.searches import (
    DECAY,
    GRID,
    RATE,
    bowl_in,
    epochs_tried,
    in_a_process,
    search,
    study,
    table,
)
from timetotrain.launch import procfs
from timetotrain.launch.children import Children
from timetotrain.search import __main__ as command
from timetotrain.search import driver, trial
from timetotrain.search.driver import Plan

ROOT = pathlib.Path(__file__).resolve().parents[3]
BASE = PRESETS["cpu-tiny"]


@pytest.fixture
def bowl(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    yield from bowl_in(tmp_path, monkeypatch)


def test_forty_trials_killed_half_way_and_resumed_lose_none_and_find_the_optimum(bowl, monkeypatch) -> None:
    """Two processes search; SIGKILL, which they cannot catch, comes while two runs are in progress."""
    monkeypatch.setenv("BOWL_SECONDS", "0.1")
    flags = search("--space", RATE, DECAY, "--trials=40", "--processes=2", "--sampler=tpe")
    first = subprocess.Popen(in_a_process(flags), stdout=subprocess.PIPE, text=True)
    lines = [first.stdout.readline() for _ in range(20)]
    first.send_signal(signal.SIGKILL)
    lines += first.stdout.readlines()
    first.wait()
    numbers = {int(line.split()[1].rstrip(":")) for line in lines if line.startswith("trial")}
    before = {t.number: t.values for t in study(bowl).trials if t.state.is_finished()}
    assert numbers <= set(before) and 20 <= len(before) < 40
    done = subprocess.run(in_a_process(flags), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = {t.number: t.values for t in study(bowl).trials if t.state.is_finished()}
    assert all(after[number] == values for number, values in before.items())
    rows = table(bowl)
    assert len(rows) == 40 and all(row["state"] == "done" for row in rows)
    best = max(rows, key=lambda row: float(row["quality"]))
    assert 0.05 < float(best["optimizer.base_learning_rate"]) < 0.2
    assert abs(float(best["optimizer.weight_decay"]) - 0.3) < 0.25
    folder = bowl / "results" / "search" / "it"
    assert (folder / "search.png").stat().st_size > 0 and (folder / "search.md").read_text().count("\n") == 42


def test_sigterm_ends_the_runs_and_a_later_search_begins_them_again(bowl, monkeypatch) -> None:
    monkeypatch.setenv("BOWL_SECONDS", "60")
    flags = search("--space", RATE, "--trials=2", "--processes=2")
    first = subprocess.Popen(in_a_process(flags))
    folder = bowl / "results" / "search" / "it"
    wait_for(lambda: sum(p.read_text() == "trained\n" for p in folder.glob("*/output.txt")) == 2)
    first.terminate()
    assert first.wait(30) == 128 + signal.SIGTERM
    assert len(list(folder.glob("trial-*/*/*/result_0.txt"))) == 2  # Cut-off runs.
    waiting = [t for t in study(bowl).trials if t.state == optuna.trial.TrialState.WAITING]
    assert len(waiting) == 2
    monkeypatch.setenv("BOWL_SECONDS", "0")
    assert command.main(flags) == 0
    assert [row["state"] for row in table(bowl)] == ["done"] * 2
    assert all(float(row["quality"]) < 0.99 for row in table(bowl))
    rates = {float(row["optimizer.base_learning_rate"]) for row in table(bowl)}
    assert rates == {t.params["optimizer.base_learning_rate"] for t in waiting}


def test_the_runs_of_a_killed_search_end_by_themselves(bowl, monkeypatch) -> None:
    monkeypatch.setenv("BOWL_SECONDS", "60")
    flags = search("--space", RATE, "--trials=1")
    killed = subprocess.Popen(in_a_process(flags))
    output = bowl / "results" / "search" / "it" / "trial-0" / "output.txt"
    wait_for(lambda: output.is_file() and output.read_text() == "trained\n")
    (trained,) = procfs.children_of(killed.pid)
    assert procfs.session_members(trained) == [trained]
    killed.kill()
    killed.wait()
    trial.wait(output.parent, Children())  # As the search that repeats the trial does.
    wait_for(lambda: not procfs.session_members(trained))


def test_a_grid_is_every_point_once(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.01,0.1", "train_epochs=1..3:1"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--processes=2")) == 0
    rows = table(bowl)
    points = {(float(r["optimizer.base_learning_rate"]), float(r["train_epochs"])) for r in rows}
    assert len(rows) == 6 and points == {(r, float(e)) for r in (0.01, 0.1) for e in (1, 2, 3)}
    assert command.main(search("--space", *spec, "--sampler=grid")) == 0
    assert len(table(bowl)) == 6


PLACES = [
    (optuna.Study, "ask", 1), (optuna.Trial, "_suggest", 1), (optuna.Trial, "set_user_attr", 2),
    (optuna.Study, "tell", 2), (optuna.Study, "set_user_attr", 1),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "call"), PLACES, ids=[name for _, name, _ in PLACES])
def test_a_search_that_is_killed_anywhere_loses_no_point(bowl, monkeypatch, kind, name, call) -> None:
    method, calls = getattr(kind, name), []

    def interrupted(self, *args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(kind, name, interrupted)
        assert command.main(search(*GRID)) == 130
    folders = len(list((bowl / "results/search/it").glob("trial-*")))
    assert command.main(search(*GRID)) == 0
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]
    # A run that had ended before the search could record it gives its result; it is not run again.
    runs = len(list((bowl / "results/search/it").glob("trial-*")))
    assert runs == 4 and folders <= 2


def test_a_trial_that_failed_without_a_retry_is_repeated(bowl) -> None:
    assert command.main(search(*GRID, "--trials=3")) == 0
    tried, (distribution,) = epochs_tried(bowl), study(bowl).trials[0].distributions.values()
    params = {"train_epochs": next(str(n) for n in range(1, 5) if str(n) not in tried)}
    failed = optuna.trial.create_trial(
        state=optuna.trial.TrialState.FAIL, params=params, distributions={"train_epochs": distribution}
    )
    study(bowl).add_trial(failed)
    assert command.main(search(*GRID)) == 0
    assert epochs_tried(bowl) == ["1", "2", "3", "4"] and {row["state"] for row in table(bowl)} == {"done"}


def test_a_grid_with_seeds_is_every_point_once_whatever_the_search_s_seed(bowl) -> None:
    flags = search("--space", "seed=0,1", "train_epochs=1,2", "--sampler=grid")
    assert command.main([*flags, "--trials=2"]) == command.main([*flags, "--seed=7"]) == 0
    assert len({(row["seed"], row["train_epochs"]) for row in table(bowl)}) == 4 == len(table(bowl))


def test_a_second_search_at_once_is_one_line(bowl, monkeypatch, capsys) -> None:
    monkeypatch.setenv("BOWL_SECONDS", "60")
    first = subprocess.Popen(in_a_process(search(*GRID)))
    wait_for((bowl / "results/search/it/trial-0/output.txt").is_file)
    assert command.main(search(*GRID)) == 2
    assert "another run is writing it; give another --name, or wait for it" in capsys.readouterr().err
    first.terminate()
    first.wait()


def test_time_to_train_leaves_out_runs_that_miss_the_target(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.1,10", "optimizer.weight_decay=0.3", "train_epochs=4,8"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--objective=time")) == 0
    rows = table(bowl)
    assert {row["state"] for row in rows if row["optimizer.base_learning_rate"] == "10"} == {"no result"}
    result = study(bowl)
    assert (result.best_value, result.best_params["train_epochs"]) == (4.0, "4")


def test_failed_runs_are_in_the_table_and_do_not_end_the_search(bowl) -> None:
    """One refuses its flags, one raises an exception after an evaluation, and one evaluates to nan."""
    assert command.main(search("--space", "optimizer.momentum=0.5,0.25,0.75,0.9", "--sampler=grid")) == 0
    states = {row["optimizer.momentum"]: row["state"] for row in table(bowl)}
    assert states == {"0.5": "failed", "0.25": "failed", "0.75": "no result", "0.9": "done"}
    assert "error: no run with this momentum" in {row["message"] for row in table(bowl)}


def test_a_resumed_random_search_draws_other_points(bowl) -> None:
    for trials in (3, 6):
        assert command.main(search("--space", RATE, "--sampler=random", f"--trials={trials}")) == 0
    assert len({row["optimizer.base_learning_rate"] for row in table(bowl)}) == 6


def test_another_space_under_the_same_name_is_one_line(bowl, capsys) -> None:
    assert command.main(search("--space", RATE, "--trials=1")) == 0
    assert command.main(search("--space", DECAY, "--trials=1")) == 2
    assert "a search with another space" in capsys.readouterr().err


def test_the_command_refuses_in_one_line(bowl, capsys) -> None:
    for flags, message in (
        (["--space", "optimizer.rate=1"], "no field 'rate'"),
        (["--space", "train_epochs=1..3", "--sampler=grid"], "needs values"),
        (["--space", "train_epochs=1,2", "--", "--config.epochs=3"], "no field 'epochs'"),
        (["--space", RATE, "--trials=0"], "--trials and --processes: at least 1"),
        (["--space", RATE, "--data_dir=nowhere"], "--data_dir=nowhere: no such folder"),
    ):
        assert command.main(search(*flags)) == 2
        assert message in capsys.readouterr().err
    for package in ("nothing", "common"):
        assert command.main([package, "--system=a", "--data_dir=.", "--space", "a=1"]) == 2
        assert f"{package}: no benchmark" in capsys.readouterr().err
    assert not (bowl / "results").exists()


def test_the_direction_follows_the_objective() -> None:
    assert [Plan({}, "tpe", 1, name).direction for name in ("quality", "time")] == ["maximize", "minimize"]
    assert Plan({}, "tpe", 1, "quality", lower_is_better=True).direction == "minimize"
    assert command.lower_is_better("ptb", BASE) and not command.lower_is_better("mnist", BASE)


PARTS = [
    "bowl", "--system=both", "--data_dir=.", "--name=it", "--space", "train_epochs=1,10", "--sampler=grid",
]  # fmt: skip


@pytest.mark.parametrize(("part", "best"), [("BBOX", "10"), ("SEGM", "1")])
def test_one_of_several_qualities_counts(bowl, part, best) -> None:
    """The second quality improves with fewer epochs."""
    rate = ["--", "--config.optimizer.base_learning_rate=0.1"]
    assert command.main([*PARTS, f"--part={part}", *rate]) == 0
    rows = {row["train_epochs"]: float(row["quality"]) for row in table(bowl)}
    assert max(rows, key=rows.get) == best and len(rows) == 2
    assert study(bowl).best_trial.params["train_epochs"] == best


def test_a_trial_of_several_qualities_left_by_a_killed_search_gets_its_result(bowl, monkeypatch) -> None:
    flags = [*PARTS, "--part=SEGM"]
    with monkeypatch.context() as patch:
        patch.setattr(driver.Search, "_report", lambda *_: signal.raise_signal(signal.SIGINT))
        assert command.main(flags) == 130
    assert command.main(flags) == 0
    rows = table(bowl)
    assert {row["train_epochs"]: row["state"] for row in rows} == {"1": "done", "10": "done"}
    assert study(bowl).best_value == pytest.approx(max(float(row["quality"]) for row in rows))
    assert len(list((bowl / "results" / "search" / "it").glob("trial-*"))) == 2


def test_the_quality_that_counts_is_required_before_anything_runs(bowl, capsys) -> None:
    wants = "bowl has several qualities: say which one counts, --part=BBOX or --part=SEGM"
    for flags, message in (
        (PARTS, f"error: {wants}\n"),
        ([*PARTS, "--part=bbox"], f"error: {wants}, not --part=bbox\n"),
        (search("--space", RATE, "--part=BBOX"), "--part=BBOX: bowl has one quality; leave --part out"),
    ):
        assert command.main(flags) == 2 and message in capsys.readouterr().err
    assert not (bowl / "results").exists()
    assert command.main([*PARTS, "--part=BBOX"]) == 0 and command.main([*PARTS, "--part=SEGM"]) == 2
    assert "a search with another part (BBOX); give another --name" in capsys.readouterr().err


def test_a_real_log_of_mask_rcnn_is_a_trial_s_result(tmp_path) -> None:
    folder = tmp_path / "cpu-nuclei" / "maskrcnn"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "lab/studies" / "nuclei" / "maskrcnn_result_0.txt", folder / "result_0.txt")
    outcomes = {part: trial.read(tmp_path, part) for part in ("BBOX", "SEGM")}
    assert (outcomes["BBOX"].quality, outcomes["SEGM"].quality) == (0.51502864836322, 0.5341658767907146)
    assert not outcomes["BBOX"].reached
    assert outcomes["BBOX"].minutes > 0


def test_a_disk_that_fills_up_ends_the_search_in_one_line_and_loses_no_trial(bowl, monkeypatch) -> None:
    """A limit on the length of a file leaves the database room for some trials only, whose results are long."""
    monkeypatch.setenv("BOWL_WORDS", "." * 2000)
    flags = search("--space", RATE, DECAY, "--trials=8", "--sampler=random")
    assert command.main([*flags, "--trials=1"]) == 0
    limit = (bowl / "results/search/it/search.db").stat().st_size + 16384
    ended = subprocess.run(
        in_a_process(flags),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert ended.returncode == 2 and ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
    assert "search.db: " in ended.stderr and "; free space there" in ended.stderr
    lines = [line for line in ended.stdout.splitlines() if line.startswith("trial ")]
    assert lines
    assert command.main(flags) == 0
    rows = table(bowl)
    assert len(rows) == 8 and all(row["state"] == "done" for row in rows)
    values = {row["optimizer.base_learning_rate"][:4] for row in rows}
    assert {line.split("base_learning_rate=")[1][:4] for line in lines} <= values


def test_logs_of_another_search_are_no_results(bowl, capsys) -> None:
    assert command.main(search("--space", "optimizer.base_learning_rate=0.001,0.1", "--sampler=grid")) == 0
    (bowl / "results/search/it/search.db").unlink()
    assert command.main(search("--space", "optimizer.momentum=0.5,0.6", "--sampler=grid")) == 2
    assert "of an earlier version, or without its database; give another --name" in capsys.readouterr().err
    assert not table(bowl)[0].get("optimizer.momentum")


def test_a_log_that_lies_in_a_trial_s_folder_is_not_its_result(bowl) -> None:
    """The log is an older one, in the folder of a run that fails before it writes its own."""
    folder = bowl / "trial-0"
    run = trial.Command("bowl", ("--system=cpu-tiny",)).run
    assert run({"optimizer.momentum": 0.9}, folder, Children()).quality is not None
    outcome = run({"optimizer.momentum": 0.5}, folder, Children())
    assert outcome.quality is None and outcome.message == "error: no run with this momentum"


def test_a_file_that_is_no_database_stays_unchanged(bowl, capsys) -> None:
    notes = bowl / "results/search/it/search.db"
    notes.parent.mkdir(parents=True)
    notes.write_text("to buy: a disk")
    assert command.main(search(*GRID)) == 2
    assert f"{notes}: cannot open it: " in capsys.readouterr().err
    assert notes.read_text() == "to buy: a disk"


def test_a_result_folder_that_cannot_be_made_is_one_line(bowl, capsys) -> None:
    (bowl / "results").write_text("a file")
    assert command.main(search(*GRID)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "Not a directory" in error and "choose another --result_dir" in error


@pytest.mark.parametrize("name", ["search.csv", "search.md", "search.png"])
def test_a_full_disk_at_the_end_is_one_line_and_the_next_search_writes_what_is_missing(
    bowl, monkeypatch, capsys, name
) -> None:
    folder = bowl / "results" / "search" / "it"
    assert command.main(search("--space", "train_epochs=1,2,3,4", "--sampler=grid", "--trials=2")) == 0
    before = (folder / name).read_bytes()
    write = pathlib.Path.write_bytes

    def some(self: pathlib.Path, data: bytes) -> int:
        if not self.name.startswith(name):
            return write(self, data)
        write(self, data[:10])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pathlib.Path, "write_bytes", some)
        assert command.main(search(*GRID)) == 2
    assert f"{name}: cannot write: No space left on device; free space there" in capsys.readouterr().err
    assert (folder / name).read_bytes() == before and not list(folder.glob("*.partial"))
    assert command.main(search(*GRID)) == 0 and (folder / name).read_bytes() != before
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]
