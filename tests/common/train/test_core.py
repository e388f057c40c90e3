"""Tests the core on a toy task against numpy: loop, checkpoint, sharded updates, clipping, segments, loss scale.

The whole file takes under a minute of one core, so `make quick` runs it after any edit of the loop or the update. The
files of each part test more backends and cases.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from common.config.optimizer import Lars, Sgd
from common.config.schema import Communication
from common.distributed import replicas as backends
from common.layers.precision import precision
from common.train import checkpoint, events, gradients
from common.train.programs import Programs
from common.train.state import State
from tests.common.distributed.replicas import processes
from tests.common.distributed.updates import buckets_of
from tests.common.train import naive_toy, toy
from tests.common.train.loops import at_step, bits, losses, notes, of, run, saves

# Learning rates are float32 numbers; these are exact in it.
SGD = Sgd(base_learning_rate=0.25, weight_decay=1e-2)
LARS = Lars(base_learning_rate=1.0, eta=0.05, weight_decay=1e-2, epsilon=1e-5)
# The norm of most of the toy's gradients is larger.
LIMIT = 0.1
CLIPPED = dataclasses.replace(SGD, clip_norm=LIMIT)


@pytest.fixture(autouse=True)
def several_buckets():
    """One of them has several weights."""
    with buckets_of(1500):
        yield


def config(**changes: Any) -> toy.Config:
    """Two epochs of four steps in float64, with batch norm over four examples and no target."""
    fields = {"precision": "fp64", "quality_target": 2.0, "train_epochs": 2, "batch_norm_span": 4}
    return toy.config(**{**fields, "optimizer": SGD, **changes})


def mirrored(number: int, communication: Communication | None = None, **changes: Any) -> dict[str, Any]:
    """`communication` None is the usual one."""
    communication = communication or Communication()
    return {"replicas": "mirrored", "num_replicas": number, "communication": communication, **changes}


def sharded(form: str = "sharded", **changes: Any) -> Communication:
    return Communication(weight_update=form, **changes)


def make(task: type[toy.Task] = toy.Task, **changes: Any) -> tuple[Programs, list[np.ndarray]]:
    """A loop, and the weights from which it starts."""
    settings = config(**changes)
    loop = Programs(task(settings), backends.make(settings))
    return loop, weights(loop)


def weights(loop: Programs) -> list[np.ndarray]:
    """The trainable weights of the first replica; asserts that all replicas have the same."""
    copies = [loop.replicas.local_results(v) for v in loop.state.model.trainable_variables]
    for first, *others in copies:
        assert all(np.array_equal(first, other) for other in others), "replicas differ"
    return [first.numpy() for first, *_ in copies]


def assert_equals(loop: Programs, history: list, naive: naive_toy.Training) -> None:
    np.testing.assert_allclose(losses(history), naive.losses, rtol=1e-10)
    for mine, other in zip(weights(loop), naive.weights, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)


# -- the loop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [mirrored(2, sharded()), {"replicas": "pjrt", "num_replicas": 2}])
def test_a_snapshot_has_a_weight_once_and_restores_it_on_every_replica(changes: dict) -> None:
    processes.require(changes["replicas"])
    loop, _ = make(**changes)
    before, copies_of = bits(loop), loop.state.snapshot()
    count = {len(copies) for v, copies in zip(loop.state.variables(), copies_of) if v.trainable}
    assert count == {1} and max(map(len, copies_of)) == 2
    run(loop)
    assert bits(loop) != before
    loop.state.restore(copies_of)
    assert bits(loop) == before


def test_the_loop_trains_and_evaluates_as_numpy_does() -> None:
    loop, start = make(train_epochs=3)
    loop.compile()
    history = run(loop)
    naive = naive_toy.train(loop.config, start)
    assert_equals(loop, history, naive)
    assert [e.value for e in of(events.Evaluated, history)] == naive.values
    interval = ["BlockStarted", "Trained", "EvalRan", "Evaluated", "BlockStopped"]
    kinds = [type(e).__name__ for e in history if not isinstance(e, events.Progress)]
    assert kinds == ["RunStarted", *3 * interval, "RunStopped"]
    assert [e.interval.first_step for e in of(events.BlockStarted, history)] == [0, 4, 8]
    assert (history[-1].status, history[-1].step) == ("aborted", 12)
    assert naive.losses[-1] < 0.9 * naive.losses[0], "it must train"


def test_the_loop_stops_at_the_evaluation_that_meets_the_target() -> None:
    loop, start = make()
    values = naive_toy.train(dataclasses.replace(loop.config, train_epochs=8), start).values
    best = int(np.argmax(values))
    assert 0 < best < 7
    loop, _ = make(train_epochs=8, quality_target=values[best])
    saved = []
    history = run(loop, save=notes(saved))
    assert [e.value for e in of(events.Evaluated, history)] == values[: best + 1]
    assert (history[-1].status, history[-1].step, saved[-1]) == ("success", 4 * best + 4, 4 * best + 4)


# -- checkpoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [False, True], ids=["between blocks", "within a block"])
def test_a_resumed_run_is_bitwise_the_uninterrupted_one(tmp_path, within) -> None:
    changes = {"loss_scale": 64.0, "optimizer": LARS, "precision": "fp32"}
    if within:
        changes |= {"steps_per_block": 30, "train_steps": 30}
    whole, _ = make(**changes)
    history = run(whole)
    first, _ = make(toy.Slow if within else toy.Task, **changes)
    first_part = run(first, at_step(3), save=saves(tmp_path))
    stopped = first_part[-1].step
    assert first_part[-1].status == "aborted" and 3 <= stopped < (30 if within else 8)
    resumed, _ = make(**changes)
    resumed.compile()
    assert checkpoint.restore_latest(resumed, tmp_path).step == stopped
    rest = run(resumed)
    assert [*losses(first_part), *losses(rest)] == losses(history)
    assert bits(resumed) == bits(whole)


# -- one update in many ways ---------------------------------------------------------------------------------------

WAYS = {
    "micro-batches": {"accumulation_steps": 4},
    "two replicas": mirrored(2),
    "batch norm over two of four replicas": mirrored(4, batch_norm_span=8),
    "replicas with micro-batches": mirrored(2, accumulation_steps=2),
    "2d sums": mirrored(4, Communication(algorithm="2d")),
    "clipped loss scale": {"loss_scale": 96.0},
    # Clipping would hide a scale that is left in.
    "loss scale": {"loss_scale": 96.0, "optimizer": SGD},
    "sharded update": mirrored(2, sharded()),
    "sharded update, 2d": mirrored(4, sharded(algorithm="2d"), optimizer=LARS),
    "update sharded in blocks": mirrored(2, sharded("blocks")),
    # These two need the norms of whole weights.
    "sharded update, LARS": mirrored(2, sharded(), optimizer=LARS),
    "update sharded in blocks, LARS": mirrored(4, sharded("blocks"), optimizer=LARS),
    "sharded update of scaled micro-batches": mirrored(2, sharded(), accumulation_steps=2, loss_scale=64.0),
    "compiled": {"compile": "on"},
    "loop in Python": {"replicas": "pjrt"},
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_trains_as_numpy_does(way) -> None:
    processes.require(WAYS[way].get("replicas", "single"))
    loop, start = make(**{"optimizer": CLIPPED, **WAYS[way]})
    history = run(loop)
    naive = naive_toy.train(loop.config, start)
    assert_equals(loop, history, naive)
    # The moving averages of micro-batches move once for each of them.
    if loop.config.accumulation_steps == 1:
        assert [e.value for e in of(events.Evaluated, history)] == naive.values


@pytest.mark.parametrize("sums", [False, True], ids=["mean", "sum"])
def test_each_replica_clips_its_own_gradient(sums) -> None:
    """Clipping the sum instead trains otherwise, and so does no clipping: numpy tells them apart."""
    limit = 8 * LIMIT if sums else LIMIT
    optimizer = dataclasses.replace(SGD, clip_replica_norm=limit, sums_examples=sums)
    loop, start = make(**mirrored(2, optimizer=optimizer))
    history = run(loop)
    assert_equals(loop, history, naive_toy.train(loop.config, start, replicas=2))
    for other in (SGD, CLIPPED):
        changed = naive_toy.train(dataclasses.replace(loop.config, optimizer=other), start)
        assert np.abs(np.array(changed.losses) - losses(history)).max() > 1e-3


def test_fp16_follows_fp32_within_its_rounding() -> None:
    expected, _ = make(precision="fp32")
    half, _ = make(precision="fp16", loss_scale=2.0**8)
    # fp16 rounds to 2**-11; the products of 8 steps gather less than two such roundings.
    np.testing.assert_allclose(losses(run(half)), losses(run(expected)), rtol=2.0**-10)


# -- segments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("segments", [1, 3])
def test_compiled_segments_compute_the_gradients_of_the_whole(segments) -> None:
    settings = config()
    task, replicas, policy = toy.Task(settings), backends.make(settings), precision(settings.precision)
    state = State(task, replicas, policy)
    with buckets_of(300):
        make_gradients = gradients.make(task, state.model, replicas, True, segments)
    batch = next(iter(task.train_input(backends.base.Shard(), 16, 0)))
    loss, actual = tf.function(make_gradients, autograph=False)(batch)
    network = naive_toy.Network([v.numpy() for v in state.model.trainable_variables], span=4)
    expected, naive, _ = network.gradients(batch["x"].numpy(), batch["label"].numpy(), np.full(16, 1 / 16))
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    for mine, other in zip(actual, naive, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-13)
    if segments > 1:
        (cut,) = make_gradients._cuts.values()
        assert len(cut.segments) == segments


@pytest.mark.parametrize("accumulation", [1, 2])
def test_each_gradient_gets_its_weights_layout_once(monkeypatch, accumulation) -> None:
    """Shown by a factor of two in place of the change of layout, which changes no value."""
    settings = config(accumulation_steps=accumulation)
    task, replicas, policy = toy.Task(settings), backends.make(settings), precision(settings.precision)
    state = State(task, replicas, policy)
    batch = next(iter(task.train_input(backends.base.Shard(), 16, 0)))
    compute = gradients.make(task, state.model, replicas)
    actual = []
    for factor in (1, 2):
        monkeypatch.setattr(gradients.gpu_forms, "in_weight_layout", lambda _, g, factor=factor: factor * g)
        actual.append(compute(batch)[1])
    for one, doubled in zip(*actual, strict=True):
        np.testing.assert_allclose(2 * one, doubled, rtol=1e-12)
