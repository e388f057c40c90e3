"""Tests the Multi30k study: evaluations of an interrupted run, and the checkpoint of the best one."""

import argparse
import fcntl
import pathlib

import pytest

from common.errors import UserError
from lab.studies import data, multi30k, runner
from tests.benchmarks import line


def block(epoch, step, minute, sacrebleu):
    trained = line("train_loss", 1.0, minute * 60000, epoch_num=epoch, step=step)
    evaluated = line(
        "eval_accuracy", 0.3, minute * 60000, epoch_num=epoch, bleu=sacrebleu + 1, sacrebleu=sacrebleu
    )
    return trained + evaluated


@pytest.fixture
def logs(tmp_path):
    """Two blocks, an interruption in the third, and the run that resumed it."""
    first = line("run_start") + block(2, 20, 1, 10.0) + block(4, 40, 2, 30.0)
    first += line("train_loss", 1.0, 150000, epoch_num=6, step=47)
    second = line("run_start", time_ms=10**7)
    second += block(6, 60, 10**7 / 60000 + 1, 25.0)
    paths = [tmp_path / f"result_{i}.txt" for i in range(2)]
    for path, text in zip(paths, (first, second)):
        path.write_text(text)
    return paths


def test_an_interrupted_run_is_put_together(logs):
    found = multi30k.evaluations(logs)
    assert [(e.epoch, e.step, e.sacrebleu) for e in found] == [(2, 20, 10.0), (4, 40, 30.0), (6, 60, 25.0)]
    assert [e.minutes for e in found] == pytest.approx([1, 2, 3])


def test_the_checkpoint_is_that_of_the_evaluation(logs, tmp_path):
    best = max(multi30k.evaluations(logs), key=lambda e: e.sacrebleu)
    for step in (20, 40, 47, 60):  # 47: where the run was interrupted.
        (tmp_path / f"checkpoint_{step:08d}.npz").touch()
    assert multi30k.checkpoint_of(best, tmp_path).name == "checkpoint_00000040.npz"
    (tmp_path / "checkpoint_00000040.npz").unlink()
    with pytest.raises(UserError, match="checkpoint_00000040.npz: the checkpoint of the best epoch is gone"):
        multi30k.checkpoint_of(best, tmp_path)


@pytest.mark.parametrize("benchmark", sorted(multi30k.CONVERT))
def test_every_choice_has_its_preset(benchmark):
    import importlib

    assert multi30k.PRESET in importlib.import_module(f"{benchmark}.presets").PRESETS


def evaluation(epoch, minute, sacrebleu):
    """The log lines of an evaluation that a resumed run begins with, without a train_loss."""
    return block(epoch, 0, minute, sacrebleu).splitlines(True)[1]


def test_a_run_that_begins_with_an_evaluation_says_its_step(logs):
    """After SIGKILL in an evaluation the log of its block is gone; an older log has another step of the block."""
    later = line("resumed_from_step", 60) + line("run_start", time_ms=10**7)
    later += evaluation(6, 10**7 / 60000 + 1, 35.0) + block(8, 80, 10**7 / 60000 + 2, 20.0)
    logs[1].write_text(later)
    found = multi30k.evaluations(logs)
    assert [(e.epoch, e.step) for e in found] == [(2, 20), (4, 40), (6, 60), (8, 80)]
    assert max(found, key=lambda e: e.sacrebleu).step == 60


def test_runs_are_in_the_order_of_their_begins(logs, tmp_path):
    """The order is not that of their names, in which result_10 comes before result_2."""
    later = tmp_path / "result_10.txt"
    logs[1].rename(later)
    logs[0].rename(tmp_path / "result_2.txt")
    found = multi30k.evaluations([later, tmp_path / "result_2.txt"])
    assert [e.minutes for e in found] == pytest.approx([1, 2, 3])


def test_an_evaluation_of_unknown_step_is_one_line(tmp_path):
    path = tmp_path / "result_0.txt"
    path.write_text(line("run_start") + evaluation(2, 1, 10.0))
    with pytest.raises(UserError, match="result_0.txt:2: does not say after which step"):
        multi30k.evaluations([path])
    path.write_text(line("resumed_from_step", 60))  # The run was killed before run_start.
    assert multi30k.evaluations([path]) == []


def test_the_log_of_a_killed_run_is_not_overwritten(logs, tmp_path):
    """The next run continues after these evaluations, and its log has the same name."""
    for log in logs:
        log.rename(tmp_path / "result_0.txt.partial")
        multi30k.keep_killed(tmp_path)
    kept = sorted(tmp_path.glob("*.txt*"))
    assert [p.name for p in kept] == ["killed_0.txt", "killed_1.txt"]
    assert [e.epoch for e in multi30k.evaluations(kept)] == [2, 4, 6]


def test_the_log_of_a_run_that_goes_on_stays(tmp_path):
    path = tmp_path / "result_0.txt.partial"
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another run is writing it"):
            multi30k.keep_killed(tmp_path)
    assert path.is_file()


@pytest.fixture
def captions(tmp_path, monkeypatch):
    """The study with `guarded` replaced: the returned list holds what its calls, conversion and training, do."""
    import gzip

    source = tmp_path / "cache" / "text" / "multi30k"
    source.mkdir(parents=True)
    for language in ("en", "de"):
        (source / f"{multi30k.TEST}.{language}.gz").write_bytes(gzip.compress(language.encode()))
    monkeypatch.setattr(multi30k, "unpack", lambda _: source.parent)
    monkeypatch.setattr(multi30k, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(multi30k, "ROOT", tmp_path)
    doing = []

    def guarded(command, **options):
        return doing.pop(0)(list(map(str, command)), **options)

    for module in (multi30k, runner):
        monkeypatch.setattr(module, "guarded", guarded)
    return doing


def converter(command, status=0):
    folder = pathlib.Path(command[3])
    folder.mkdir()
    (folder / "train-0").touch()
    return status


def killed(command):
    converter(command)
    raise KeyboardInterrupt


def test_a_conversion_that_was_interrupted_is_begun_again(captions, tmp_path):
    folder = tmp_path / "cache" / "multi30k-gnmt"
    folder.mkdir()  # A conversion by an earlier version, interrupted between the shards and the test text.
    (folder / "train-7").touch()
    (folder / "test.source").touch()
    captions += [killed, lambda command: converter(command, 1), converter]
    with pytest.raises(KeyboardInterrupt):
        multi30k._convert("gnmt")
    with pytest.raises(UserError, match="converting .* failed"):
        multi30k._convert("gnmt")
    assert not (folder / "test.reference").exists()
    for _ in range(2):  # The second call has nothing to do.
        assert multi30k._convert("gnmt") == folder
    assert sorted(p.name for p in folder.iterdir()) == ["test.reference", "test.source", "train-0"]
    assert (folder / "test.reference").read_text() == "de"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["multi30k-gnmt", "text"]
    # The text may be a link to a folder that does not belong to the study.
    assert [p.name for p in (folder.parent / "text").iterdir()] == ["multi30k"]


def test_a_conversion_onto_a_full_disk_is_one_line(captions, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    captions.append(converter)
    monkeypatch.setattr(data.os, "replace", full)
    with pytest.raises(UserError, match="multi30k-gnmt: cannot write: No space left on device; free space"):
        multi30k._convert("gnmt")


def training(*lines):
    """A training that writes a log and ends with 1, the status of a missed target and of an exception."""

    def run(command, env):
        folder = pathlib.Path(env["RESULT_DIR"], env["SYSTEM"], "gnmt")
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("result_*.txt")))
        (folder / f"result_{number}.txt").write_text("".join(lines))
        step = folder.parents[1] / "checkpoints" / "checkpoint_00000020.npz"
        step.parent.mkdir(exist_ok=True)
        step.touch()
        return 1

    return run


def translation(command, stdout):
    stdout.write('messages\n{"bleu": 21.0, "sacrebleu": 20.0}\n')
    stdout.flush()
    return 0


def stop(reason, minute):
    return line("run_stop", time_ms=minute * 60000, status="aborted", reason=reason)


def test_only_a_run_that_came_to_its_end_is_published(captions, tmp_path, capsys):
    first = line("run_start") + block(2, 20, 1, 10.0)
    again = line("resumed_from_step", 20) + line("run_start", time_ms=10**7)
    args = argparse.Namespace(benchmark="gnmt", overrides=[])
    captions += [converter, training(first, stop("IndexError: out of range", 2))]
    with pytest.raises(UserError, match="gnmt: the run failed; see above"):
        multi30k.run(args)
    folder = tmp_path / "lab/studies" / "multi30k"
    assert not folder.exists()
    captions += [training(again, stop("the target was not reached in 20 steps", 200)), translation]
    assert multi30k.run(args) == 0 and not captions
    assert "| test_2016_flickr | 2 | 1.0 | 20.0 | 21.0 |" in capsys.readouterr().out
    assert sorted(p.name for p in folder.iterdir()) == ["gnmt.png"]
