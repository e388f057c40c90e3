"""The Multi30k study: evaluations of an interrupted run, and which checkpoint belongs to the best."""

import json

import pytest

from common.errors import UserError
from studies import multi30k


def line(key, value=None, time_ms=0, **metadata):
    record = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return f":::MLLOG {json.dumps({**record, 'metadata': {'file': 'x', 'lineno': 1, **metadata}})}\n"


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

    assert multi30k.PRESET in importlib.import_module(f"{benchmark}.config").PRESETS
