"""Tests the search on a benchmark with free runs: resuming, grids, objectives, and failed runs."""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
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
from timetotrain.search import __main__ as command
from timetotrain.search import driver, space, trial
from timetotrain.search.driver import Plan
from timetotrain.search.storage import open_storage

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
    told = [first.stdout.readline() for _ in range(20)]
    first.send_signal(signal.SIGKILL)
    told += first.stdout.readlines()
    first.wait()
    numbers = {int(line.split()[1].rstrip(":")) for line in told if line.startswith("trial")}
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
    journal = bowl / "results" / "search" / "it" / "journal.log"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (
        journal.is_file() and journal.read_text().count('"process"') == 2
    ):
        time.sleep(0.1)
    folder = bowl / "results" / "search" / "it"
    while (
        time.monotonic() < deadline
        and sum(p.read_text() == "trained\n" for p in folder.glob("*/output.txt")) < 2
    ):
        time.sleep(0.1)
    first.terminate()
    assert first.wait(30) == 128 + signal.SIGTERM
    assert len(list(folder.glob("trial-*/*/*/result_0.txt"))) == 2  # Cut-off runs.
    left = [t for t in study(bowl).trials if t.state == optuna.trial.TrialState.RUNNING]
    assert len(left) == 2
    monkeypatch.setenv("BOWL_SECONDS", "0")
    assert command.main(flags) == 0
    assert {row["state"] for row in table(bowl)} == {"done"} and all(
        float(row["quality"]) < 0.99 for row in table(bowl)
    )
    rates = {float(row["optimizer.base_learning_rate"]) for row in table(bowl)}
    assert rates == {t.params["optimizer.base_learning_rate"] for t in left}


def test_the_runs_of_a_killed_search_end_by_themselves(bowl, monkeypatch) -> None:
    monkeypatch.setenv("BOWL_SECONDS", "60")
    flags = search("--space", RATE, "--trials=1")
    killed = subprocess.Popen(in_a_process(flags))
    output = bowl / "results" / "search" / "it" / "trial-0" / "output.txt"
    wait_for(lambda: output.is_file() and output.read_text() == "trained\n")
    (left,) = study(bowl).trials
    guard = left.user_attrs["process"]
    assert len(procfs.session_members(guard)) == 2
    killed.kill()
    killed.wait()
    wait_for(lambda: not procfs.session_members(guard))


def test_a_grid_is_every_point_once(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.01,0.1", "train_epochs=1..3:1"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--processes=2")) == 0
    rows = table(bowl)
    points = {(float(r["optimizer.base_learning_rate"]), float(r["train_epochs"])) for r in rows}
    assert len(rows) == 6 and points == {(r, float(e)) for r in (0.01, 0.1) for e in (1, 2, 3)}
    assert command.main(search("--space", *spec, "--sampler=grid")) == 0
    assert len(table(bowl)) == 6


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, call: int) -> None:
    """Simulates the end of the process in the call-th call of a method of the study."""
    method, calls = getattr(optuna.Study, name), []

    def interrupted(self: optuna.Study, *args, **kwargs):
        calls.append(args)
        if len(calls) == call:
            raise KeyboardInterrupt
        return method(self, *args, **kwargs)

    monkeypatch.setattr(optuna.Study, name, interrupted)


@pytest.mark.parametrize(("name", "call"), [("set_user_attr", 3), ("enqueue_trial", 2), ("enqueue_trial", 4)])
def test_a_grid_that_is_killed_as_it_is_queued_loses_no_point(bowl, monkeypatch, name, call) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, name, call)
        assert command.main(search(*GRID)) == 130
    assert command.main(search(*GRID)) == 0
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]


def ended() -> list:
    """A trial's owner that has ended: the number is this process's, but the start time differs."""
    return [socket.gethostname(), os.getpid(), "1"]


def leave_open(folder: pathlib.Path, count: int) -> None:
    """Leaves a search with a queued grid, an ended owner, `count` open trials, and one trial partly begun."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.Search, "run", lambda *_: None)
        patch.setattr("timetotrain.search.report.publish", lambda *_: "")
        command.main(search(*GRID))
    found = study(folder)
    for i in range(count):
        trial = found.ask(
            {} if i else {"train_epochs": optuna.distributions.CategoricalDistribution(["1", "2", "3", "4"])}
        )
        trial.set_user_attr("owner", ended())


@pytest.mark.parametrize(
    ("name", "call"), [("enqueue_trial", 1), ("enqueue_trial", 2), ("tell", 1), ("tell", 2)]
)
def test_a_search_that_is_killed_while_it_takes_over_loses_no_point(bowl, monkeypatch, name, call) -> None:
    """The search is killed twice, each time before or between queueing a point and closing the trial it replaces."""
    leave_open(bowl, 2)
    for i in range(2):
        with monkeypatch.context() as patch:
            interrupt(patch, name, call)
            # This process lives on, so that its start time is patched to make the interrupted search count as ended.
            patch.setattr(driver, "began", lambda number, i=i: f"ended {i}")
            # The second search may not reach the interrupted call.
            assert command.main(search(*GRID)) in ((130,) if not i else (130, 0))
    assert command.main(search(*GRID)) == 0
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]


def test_a_point_that_two_searches_queue_is_run_once(bowl) -> None:
    leave_open(bowl, 1)
    found = study(bowl)
    found.enqueue_trial({"train_epochs": "1"}, user_attrs={"instead_of": 0})
    found.enqueue_trial({"train_epochs": "1"}, user_attrs={"instead_of": 0})
    found.enqueue_trial({"train_epochs": "4"})
    assert command.main(search(*GRID)) == 0
    assert epochs_tried(bowl) == ["1", "2", "3", "4"]


def test_a_process_is_identified_by_its_start_time_too() -> None:
    """In a restarted container, processes get the numbers of earlier ones."""
    mine = [socket.gethostname(), os.getpid(), driver.began(os.getpid())]
    assert mine[2]

    def ownerless(owner: list) -> bool:
        trial = optuna.trial.create_trial(value=0.0, user_attrs={"owner": owner})
        return driver._ownerless(trial)

    assert not ownerless(mine)
    assert ownerless([*mine[:2], str(int(mine[2]) + 1)])
    assert not ownerless(["another-host", *mine[1:2], "1"])
    child = subprocess.Popen([sys.executable, "-c", ""])
    begin = driver.began(child.pid)
    child.wait()
    assert driver.began(child.pid) is None and ownerless([mine[0], child.pid, begin])


def test_time_to_train_leaves_out_runs_that_miss_the_target(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.1,10", "optimizer.weight_decay=0.3", "train_epochs=4,8"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--objective=time")) == 0
    rows = table(bowl)
    assert {row["state"] for row in rows if row["optimizer.base_learning_rate"] == "10"} == {"no result"}
    found = study(bowl)
    assert (found.best_value, found.best_params["train_epochs"]) == (4.0, "4")


def test_both_objectives_give_a_pareto_front(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.1,1", "optimizer.weight_decay=0.3", "train_epochs=1,10"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--objective=both")) == 0
    front = {
        (t.params["optimizer.base_learning_rate"], t.params["train_epochs"]) for t in study(bowl).best_trials
    }
    assert front == {("0.1", "1"), ("0.1", "10")}


def test_a_threshold_ends_the_search(bowl) -> None:
    spec = ["optimizer.base_learning_rate=0.1", "optimizer.weight_decay=0.3", "train_epochs=10..40:1"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--stop-at=0.9")) == 0
    assert len(table(bowl)) == 1


def test_a_failed_run_is_in_the_table_with_its_message(bowl) -> None:
    spec = ["optimizer.momentum=0.5,0.9"]
    assert command.main(search("--space", *spec, "--sampler=grid")) == 0
    failed = next(row for row in table(bowl) if row["state"] == "failed")
    assert failed["message"] == "error: no run with this momentum"


def test_an_evaluation_before_an_exception_is_no_result(bowl) -> None:
    spec = ["optimizer.momentum=0.25,0.9"]
    assert command.main(search("--space", *spec, "--sampler=grid", "--objective=both")) == 0
    states = {row["optimizer.momentum"]: row["state"] for row in table(bowl)}
    assert states == {"0.25": "failed", "0.9": "done"}


@pytest.mark.parametrize("objective", ["quality", "both"])
def test_an_evaluation_that_is_no_number_does_not_end_the_search(bowl, objective) -> None:
    spec = ["optimizer.momentum=0.75,0.9"]
    assert command.main(search("--space", *spec, "--sampler=grid", f"--objective={objective}")) == 0
    rows = {row["optimizer.momentum"]: row for row in table(bowl)}
    assert rows["0.75"]["state"] != "done" and rows["0.9"]["state"] == "done"


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_searches_that_start_together_draw_other_points(bowl, sampler) -> None:
    parsed = space.parse([RATE], BASE)
    storage = open_storage(bowl / "journal.log")
    plan = Plan(parsed, sampler, 40, ("quality",))
    both = [driver.Search("it", plan, driver.Command("bowl", ()), bowl, storage) for _ in range(2)]
    drawn = [found._ask().params["optimizer.base_learning_rate"] for _ in range(3) for found in both]
    assert len(set(drawn)) == 6


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
        (["--space", RATE, "--data-dir=nowhere"], "--data_dir=nowhere: no such folder"),
    ):
        assert command.main(search(*flags)) == 2
        assert message in capsys.readouterr().err
    for package in ("nothing", "common"):
        assert command.main([package, "--system=a", "--data-dir=.", "--space", "a=1"]) == 2
        assert f"{package}: no benchmark" in capsys.readouterr().err
    assert not (bowl / "results").exists()


def test_directions_and_the_threshold_follow_the_objective() -> None:
    assert Plan({}, "tpe", 1, ("quality", "time")).directions == ["maximize", "minimize"]
    assert Plan({}, "tpe", 1, ("quality",), lower_is_better=True, stop_at=4.0).good_enough(3.9)
    assert not Plan({}, "tpe", 1, ("quality",), stop_at=0.9).good_enough(0.89)
    assert command.lower_is_better("ptb", BASE) and not command.lower_is_better("mnist", BASE)


PARTS = [
    "bowl", "--system=both", "--data-dir=.", "--name=it", "--space", "train_epochs=1,10", "--sampler=grid",
]  # fmt: skip


@pytest.mark.parametrize(("part", "best"), [("BBOX", "10"), ("SEGM", "1")])
@pytest.mark.parametrize("objective", ["quality", "both"])
def test_one_of_several_qualities_counts(bowl, part, best, objective) -> None:
    """The second quality improves with fewer epochs."""
    rate = ["--", "--config.optimizer.base_learning_rate=0.1"]
    assert command.main([*PARTS, f"--part={part}", f"--objective={objective}", *rate]) == 0
    rows = {row["train_epochs"]: float(row["quality"]) for row in table(bowl)}
    assert max(rows, key=rows.get) == best and len(rows) == 2
    assert (study(bowl).best_trials[0].params["train_epochs"] == best) or objective == "both"


def test_a_trial_of_several_qualities_left_by_a_killed_search_gets_its_result(bowl, monkeypatch) -> None:
    flags = [*PARTS, "--part=SEGM"]
    with monkeypatch.context() as patch:
        interrupt(patch, "tell", 1)
        patch.setattr(driver, "began", lambda number: "ended")
        assert command.main(flags) == 130
    assert command.main(flags) == 0
    assert {row["train_epochs"]: row["state"] for row in table(bowl)} == {"1": "done", "10": "done"}
    assert study(bowl).trials[0].user_attrs["quality"] == pytest.approx(study(bowl).trials[0].value)
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
    found = {part: trial.read(tmp_path, part) for part in ("BBOX", "SEGM")}
    assert (found["BBOX"].quality, found["SEGM"].quality) == (0.51502864836322, 0.5341658767907146)
    assert not found["BBOX"].reached
    assert trial.finished(tmp_path)
