"""Tests that cpu-tiny reaches its target, and that a network with a fault misses it or is better than possible."""

import dataclasses
import pathlib
from collections.abc import Callable
from unittest import mock

import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.layers import causal_attention, rope
from common.train import events
from common.train.programs import Programs
from llama31_8b import task, tiny
from llama31_8b.presets import PRESETS
from tests.common.train.loops import run

TINY = PRESETS["cpu-tiny"]


def losses(folder: pathlib.Path, **fields: object) -> list[float]:
    """Trains cpu-tiny on its language, and returns the values of its evaluations."""
    tiny.generate(folder)
    config = dataclasses.replace(TINY, **fields)
    all_events = run(Programs(task.Task(config, str(folder)), Single()))
    return [event.value for event in all_events if isinstance(event, events.Evaluated)]


@pytest.mark.e2e
def test_reaches_its_target_and_not_what_nobody_can_know(tmp_path: pathlib.Path) -> None:
    *before, last = losses(tmp_path)
    assert before and min(before) > TINY.quality_target
    assert tiny.least_loss() < last <= TINY.quality_target < 1


@pytest.mark.e2e
def test_misses_it_without_rotary_positions(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "rotated", lambda x, *_: x)
    values = losses(tmp_path)
    assert len(values) == TINY.train_steps / TINY.steps_per_block and min(values) > 2 * TINY.quality_target


@pytest.mark.e2e
def test_misses_it_if_labels_are_not_shifted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training asks for the token that the network sees; evaluations are as always."""
    loss: Callable = task.Task.loss

    def wrong(self, model, batch):
        with mock.patch.object(task, "shifted", lambda tokens: (tokens[:, :-1], tokens[:, :-1])):
            return loss(self, model, batch)

    monkeypatch.setattr(task.Task, "loss", wrong)
    assert min(losses(tmp_path, train_steps=100)) > 3


@pytest.mark.e2e
def test_is_too_good_without_the_mask(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that sees the labels knows the random letters, too."""
    monkeypatch.setattr(
        causal_attention, "causal_mask", lambda queries, keys: tf.ones([queries, keys], tf.bool)
    )
    assert losses(tmp_path, quality_target=0.1)[-1] < tiny.least_loss() / 2


def test_the_language_is_the_same_each_time_and_follows_its_rule() -> None:
    first, second = (list(tiny.documents(tiny.TINY, "eval")) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert sum(map(len, first)) == tiny.TINY.eval_tokens == TINY.num_eval_examples * TINY.sequence_length + 1
    follows, regular, all_ = {}, 0, 0
    for document in first:
        for before, after in zip(document[:-2], document[2:]):
            follows.setdefault(int(before), []).append(int(after))
    for after in follows.values():
        regular, all_ = regular + max(map(after.count, set(after))), all_ + len(after)
    assert regular / all_ == pytest.approx(1 - tiny.TINY.surprise * 25 / 26, abs=0.01)
    assert 0.3 < tiny.least_loss() < 0.4


def test_what_an_evaluation_must_have_seen(tmp_path: pathlib.Path) -> None:
    whole = task.Task(dataclasses.replace(TINY, num_eval_examples=250), None)
    sums = {"loss": 0.5 * 250 * TINY.sequence_length, "windows": 250}
    assert whole.quality(sums, {}).value == 0.5 and whole.quality(sums, {}).reached
    assert not whole.quality(sums | {"loss": 0.7 * 250 * TINY.sequence_length}, {}).reached
    for wrong in (249, 257):
        with pytest.raises(ValueError, match="250 to 256 expected"):
            whole.quality(sums | {"windows": wrong}, {})


@pytest.mark.parametrize(
    ("batch", "eval_batch", "steps", "windows"),
    [(16, 16, 768, 1024), (36, 36, 342, 1044), (96, 96, 128, 1056)],
)
def test_evaluations_of_the_reference(batch: int, eval_batch: int, steps: int, windows: int) -> None:
    """Every ceil(12,288 / batch) steps over 1,024 windows in whole batches."""
    from llama31_8b.config import Config

    config = Config(global_batch_size=batch, eval_batch_size=eval_batch)
    assert (config.evaluation_steps, config.examples_per_evaluation) == (steps, windows)
    assert PRESETS["h200-8"].steps_per_block == PRESETS["h200-8"].evaluation_steps
