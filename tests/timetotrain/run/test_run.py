"""Tests how a run handles signals, peers that fail, and its record; trains no benchmark."""

import concurrent.futures
import contextlib
import dataclasses
import errno
import json
import signal
import types

import pytest

from common.config.optimizer import Sgd
from common.distributed import agreement, heartbeat
from common.errors import PeerLostError, UserError
from common.train import events
from tests.common.train import toy
from timetotrain.run import ending, mllog, recorder, results, run, same_start
from timetotrain.run.options import RunOptions

ALONE = types.SimpleNamespace(main=False, count=1)
ENDED = events.RunStopped(60.0, "success", 8)


@pytest.fixture
def training(monkeypatch, tmp_path) -> run.Run:
    """A run of the toy task in a process that writes no log."""
    monkeypatch.setattr(run.benchmarks, "module", lambda benchmark, part: toy)
    monkeypatch.setattr(run.Run, "_listen", lambda self: None)
    monkeypatch.setattr(recorder, "_checker", lambda config: None)
    return run.Run("resnet", toy.config(), RunOptions(result_dir=str(tmp_path)), ALONE)


@pytest.fixture
def recording(training) -> run.Run:
    """A run of the toy task in the process that writes the log."""
    config, options = toy.config(), training.options
    return run.Run("resnet", config, options, ALONE, recorder.Recorder(config, options, 1, [], {}))


def test_a_signal_before_training_ends_the_run(training) -> None:
    with pytest.raises(UserError, match="SIGTERM during initialization: nothing was trained") as error:
        training._on_signal(signal.SIGTERM, None)
    again = ending.explained(UserError(f"calling layer 'rows': {error.value}"), "SIGTERM", None, None, print)
    assert error.value.exit_code == again.exit_code == 143 and str(again) == str(error.value)


def test_a_signal_whose_exception_python_dropped_ends_the_run(training) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(UserError):
            training._on_signal(number, None)
    with pytest.raises(UserError, match="SIGTERM during initialization: nothing was trained"):
        training._build()


def test_any_exception_before_the_others_are_joined_is_told_to_them_before_the_launcher(
    training, monkeypatch
) -> None:
    told, replicas = [], types.SimpleNamespace(process_index=1, num_processes=2, all_reduce_max=None)
    monkeypatch.setenv(heartbeat.BACKEND_VARIABLE, "pjrt")
    with pytest.raises(UserError, match="--describe: one process answers it"):
        same_start.needs_no_others("--describe")
    monkeypatch.setattr(same_start, "meet", lambda *words: told.append(words) or replicas)
    monkeypatch.setattr(agreement.Agreement, "same", lambda self, facts: told.append([*facts.values()]))
    monkeypatch.setattr(heartbeat, "send", lambda **facts: told.append(facts))
    monkeypatch.setattr(toy.Task, "check_input", lambda self: [][1])
    with pytest.raises(IndexError):
        training.execute()
    line = "IndexError: list index out of range"
    assert told == [("pjrt", 1), [line, "1"], {"code": 1, "error": line}]
    same_start.needs_no_others("--describe")
    same_start.refuse(UserError("again"), 1)
    assert len(told) == 3


def test_data_that_do_not_fit_end_the_log_on_the_clock(recording, monkeypatch) -> None:
    def check_data(self) -> None:
        raise UserError("train-00001: is damaged")

    monkeypatch.setattr(toy.Task, "check_data", check_data)
    whole = recording.recorder
    with pytest.raises(UserError, match="train-00001: is damaged"):
        recording.execute()
    *_, started, stopped = (json.loads(line.split(" ", 1)[1]) for line in whole.path.open())
    assert (started["key"], stopped["key"]) == ("run_start", "run_stop")
    assert stopped["metadata"]["status"] == "aborted"
    assert stopped["metadata"]["reason"] == "train-00001: is damaged"
    record = json.loads((whole.folder / "run.json").read_text())
    assert "aborted" in json.dumps(record)


def test_a_thread_that_cannot_write_a_checkpoint_hides_no_error_and_leaves_no_log_open(
    recording, monkeypatch
) -> None:
    class Saver:
        def wait(self) -> None:
            raise MemoryError("no memory for the file")

    def check_data(self) -> None:
        recording._saver = Saver()
        raise UserError("train-00001: is damaged")

    monkeypatch.setattr(toy.Task, "check_data", check_data)
    with pytest.raises(UserError, match="train-00001: is damaged"):
        recording.execute()
    assert (
        json.loads(recording.recorder.path.read_text().splitlines()[-1].split(" ", 1)[1])["key"] == "run_stop"
    )


def test_a_checkpoint_that_cannot_be_written_ends_the_training(training, monkeypatch, tmp_path) -> None:
    class Saver:
        wait = finish = save = lambda *_: None

        def check(self) -> None:
            raise UserError("cannot write a checkpoint")

    config = toy.config()
    options = dataclasses.replace(training.options, checkpoint_dir=str(tmp_path / "saved"))
    saving = run.Run("resnet", config, options, ALONE, recorder.Recorder(config, options, 1, [], {}))
    monkeypatch.setattr(toy.Task, "check_data", lambda self: setattr(saving, "_saver", Saver()))
    with pytest.raises(UserError, match="cannot write a checkpoint"):
        saving.execute()


def test_a_signal_while_the_data_are_read_ends_the_run_at_once(recording, monkeypatch) -> None:
    def check_data(self) -> None:
        recording._on_signal(signal.SIGTERM, None)
        raise AssertionError("read on")

    monkeypatch.setattr(toy.Task, "check_data", check_data)
    with pytest.raises(UserError, match="SIGTERM while reading the data: nothing was trained") as error:
        recording.execute()
    assert error.value.exit_code == 143
    stopped = json.loads(recording.recorder.path.read_text().splitlines()[-1].split(" ", 1)[1])
    assert stopped["key"] == "run_stop" and stopped["metadata"]["status"] == "aborted"


@pytest.mark.parametrize("lost_in", ["all_reduce_max", "close"])
def test_a_peer_that_dies_while_all_leave_matters_only_before_the_results_are_written(
    training, recording, lost_in
) -> None:
    def lost(*_: int) -> None:
        raise RuntimeError("a peer is gone")

    calls = {"all_reduce_max": int, "close": lambda: None, lost_in: lost}
    training._replicas = recording._replicas = types.SimpleNamespace(**calls)
    recording._leave()
    if lost_in == "close":
        training._leave()
    else:
        with pytest.raises(PeerLostError):
            training._leave()


def test_a_picture_that_cannot_be_drawn_costs_neither_record_nor_score(
    recording, monkeypatch, capsys
) -> None:
    whole = recording.recorder
    whole.path.parent.mkdir(parents=True)
    whole.path.write_text("")

    def draw(*arguments: object) -> None:
        raise UserError("disk full")

    monkeypatch.setattr(results, "draw_curve", draw)
    monkeypatch.setattr(recorder.ending, "verdict", lambda config, path: "passes")
    whole._stopped = ENDED
    whole.finish(None, print)
    assert "curve    none: disk full" in capsys.readouterr().out
    record = json.loads((whole.folder / "run.json").read_text())["runs"]["result_0.txt"]
    assert (record["status"], record["score_minutes"]) == ("success", 1.0)


@pytest.mark.parametrize(("patience", "steps"), [(2, range(12, 40)), (0, range(40, 41))])
def test_a_run_ends_after_evaluations_without_gain(training, monkeypatch, patience, steps) -> None:
    monkeypatch.setattr(recorder.ending, "verdict", lambda config, path: "none")
    still = Sgd(base_learning_rate=1e-9)
    config = toy.config(quality_target=None, train_epochs=10, patience=patience, optimizer=still)
    whole = recorder.Recorder(config, training.options, 1, [], {})
    assert run.Run("resnet", config, training.options, ALONE, whole).execute() == 0
    stopped = whole._stopped
    assert stopped.status == "complete" and stopped.step in steps
    assert stopped.reason.startswith("nothing was gained in 2 evaluations") == (patience > 0)
    last = json.loads(whole.path.read_text().splitlines()[-1].split(" ", 1)[1])
    assert last["metadata"] == last["metadata"] | {"status": "aborted", "reason": stopped.reason}


def test_a_log_that_another_run_ends_meanwhile_stays(recording) -> None:
    whole = recording.recorder
    whole.path.parent.mkdir(parents=True)
    whole.path.write_text("a result")
    with pytest.raises(UserError, match="result_0.txt: another run has just ended there; give another --run"):
        recording.execute()
    assert [p.name for p in whole.folder.iterdir()] == [
        "result_0.txt"
    ] and whole.path.read_text() == "a result"


def test_an_error_after_the_end_leaves_the_result_in_log_and_record(recording, monkeypatch) -> None:
    whole = recording.recorder
    whole._log = mllog.RunLog(whole.path, whole.config)
    whole.record(events.RunStarted(0.0, 0))

    def fail(event: object) -> None:
        raise UserError("disk full")

    monkeypatch.setattr(whole.history, "record", fail)
    with pytest.raises(UserError, match="disk full"):
        whole.record(ENDED)
    whole.failed("disk full", 61.0, print)
    assert '"status": "success"' in whole.path.read_text().splitlines()[-1]
    record = json.loads((whole.folder / "run.json").read_text())["runs"]["result_0.txt"]
    assert (record["status"], record["score_minutes"]) == ("success", 1.0)


def test_runs_that_end_together_all_have_their_record(tmp_path) -> None:
    logs = [tmp_path / f"result_{i}.txt" for i in range(8)]
    for log in logs:
        log.write_text(log.name)
    with concurrent.futures.ThreadPoolExecutor(len(logs)) as pool:
        list(pool.map(lambda log: results.update_run_json(tmp_path, log, {"status": "success"}), logs))
    assert set(json.loads((tmp_path / "run.json").read_text())["runs"]) == {log.name for log in logs}


@pytest.mark.parametrize("runs", [[], None, 3])
def test_a_run_json_whose_runs_are_no_mapping_is_one_line(tmp_path, runs) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema": results.SCHEMA, "runs": runs}))
    log = tmp_path / "result_0.txt"
    log.write_text("")
    with pytest.raises(UserError, match="not a run.json of this version"):
        results.update_run_json(tmp_path, log, {})


def started(options: RunOptions) -> int:
    config = toy.config()
    return run.Run("resnet", config, options, ALONE, recorder.Recorder(config, options, 1, [], {})).execute()


def test_a_failed_start_leaves_no_folder(training, monkeypatch, tmp_path) -> None:
    """An empty results folder would turn `check` into a no-go and break `package`."""

    def fail(self) -> None:
        raise UserError("no data")

    monkeypatch.setattr(run.Run, "_build", fail)
    options = dataclasses.replace(
        training.options,
        result_dir=str(tmp_path / "results"),
        checkpoint_dir=str(tmp_path / "new" / "checkpoints"),
    )
    with pytest.raises(UserError, match="no data"):
        started(options)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_folder_that_cannot_be_written_is_found_before_the_run(
    training, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(run.Run, "_build", lambda self: pytest.fail("too late"))
    (tmp_path / "file").touch()
    options = dataclasses.replace(training.options, checkpoint_dir=str(tmp_path / "file" / "checkpoints"))
    with pytest.raises(
        UserError, match="--checkpoint_dir=.*: cannot write: Not a directory; name a folder that"
    ):
        started(options)

    def refuse(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(recorder.files.tempfile, "TemporaryFile", refuse)
    options = dataclasses.replace(options, checkpoint_dir=str(tmp_path / "new"))
    with pytest.raises(
        UserError, match="new: cannot write: Permission denied; name a folder that you can write"
    ):
        started(options)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
