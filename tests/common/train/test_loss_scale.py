"""Tests the loss scale: the dynamic one against tf_keras's, skipped updates, log, end; test_core.py compares runs."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.config.optimizer import Adam
from common.distributed import replicas as backends
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.train import events, loss_scale
from common.train.programs import Programs
from tests.common.train import toy
from tests.common.train.loops import losses, make, of, run
from tests.common.train.loops import weights_and_slots as values
from timetotrain.run.mllog import RunLog

DYNAMIC = {"loss_scale_growth_steps": 3}
# In fp16 the gradients of a loss times this overflow; a few halvings later they do not.
OVERFLOWS = {"precision": "fp16", "loss_scale": 2.0**24, **DYNAMIC}
ADAM = Adam(base_learning_rate=0.01, epsilon=1e-8)


def trained(loop):
    seen = of(events.Trained, run(loop))
    return np.array(losses(seen)), seen


def test_the_scale_is_that_of_tf_keras():
    ours = loss_scale.DynamicScale(8.0, 3, Single())
    theirs = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.legacy.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=3
    )
    weight = tf.Variable([1.0])
    for finite in np.random.default_rng(1).random(60) < 0.75:
        ours.update(tf.constant(finite))
        theirs.apply_gradients([(tf.constant([1.0 if finite else np.inf]), weight)])
        assert float(ours.report()["loss_scale"]) == float(theirs.loss_scale)


def test_the_scale_stays_between_one_and_the_largest_number():
    scaler = loss_scale.DynamicScale(1.0, 1, Single())
    scaler.update(tf.constant(False))
    assert scaler.report() == {"loss_scale": 1.0, "skipped_updates": 1}
    assert "loss scale of 1" in scaler.lost()
    for _ in range(130):
        scaler.update(tf.constant(True))
    assert scaler.report()["loss_scale"] == 2.0**127 and not scaler.lost()


def test_an_overflow_that_halves_the_scale_to_one_leaves_it_to_be_tried():
    scaler = loss_scale.DynamicScale(2.0, 3, Single())
    scaler.update(tf.constant(False))
    assert scaler.report()["loss_scale"] == 1.0 and not scaler.lost()
    scaler.update(tf.constant(False))
    assert scaler.lost()
    for scale in (1.0, 1.0, 2.0):
        scaler.update(tf.constant(True))
        assert scaler.report()["loss_scale"] == scale and not scaler.lost()


@pytest.mark.parametrize("optimizer", [toy.config().optimizer, ADAM], ids=["sgd", "adam"])
def test_updates_that_overflow_lose_nothing(optimizer):
    """The updates after the skipped ones are those of a run that begins there, Adam's corrections included."""
    skipping = make(optimizer=optimizer, **OVERFLOWS)
    start = values(skipping)
    data = iter(skipping.task.train_input(backends.base.Shard(), 16, 0))
    batches = [next(data) for _ in range(12)]
    for first, batch in enumerate(batches):
        skipping.block._train_step(batch, tf.constant(first, tf.int64))
        if skipping.state.loss_scale.report()["skipped_updates"] == first:
            break  # The first update that was made.
        assert all(np.array_equal(a, b) for a, b in zip(values(skipping), start, strict=True))
    assert 0 < first < len(batches) - 1
    beginning = make(optimizer=optimizer, precision="fp16", loss_scale=2.0 ** (24 - first))
    beginning.block._train_step(batches[first], tf.constant(0, tf.int64))
    for mine, other in zip(values(skipping), values(beginning), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-8)


def test_fp16_follows_fp32_within_its_rounding():
    expected, _ = trained(make(precision="fp32"))
    found, seen = trained(make(precision="fp16", loss_scale=2.0**8, **DYNAMIC))
    # fp16 rounds to 2**-11; the products of 20 steps gather less than two such roundings.
    np.testing.assert_allclose(found, expected, rtol=2.0**-10)
    assert seen[-1].scale == {"loss_scale": 2.0**14, "skipped_updates": 0}


class NoGradient(toy.Task):
    """A finite loss whose gradient is none: that of the root of 0."""

    def loss(self, model, batch):
        terms = dict(super().loss(model, batch))
        name, term = terms.popitem()
        spoilt = tf.add_n([tf.reduce_sum(tf.sqrt(w * 0)) for w in model.trainable_variables])
        return {name: dataclasses.replace(term, total=term.total + tf.cast(spoilt, term.total.dtype))}


def test_a_run_whose_every_gradient_overflows_ends_with_the_reason():
    loop = make(NoGradient, loss_scale=4.0, **DYNAMIC)
    last = run(loop)[-1]
    assert last.status == "aborted" and "gradients are not finite at a loss scale of 1" in last.reason
    assert last.step == 4  # After the first block.


def test_the_log_says_the_scale_after_each_block(tmp_path):
    config = toy.config(**OVERFLOWS, train_epochs=1, quality_target=2.0)
    log = RunLog(tmp_path / "log", config)
    run(Programs(toy.Task(config), backends.make(config)), lambda event, _: log.record(event))
    log.publish()
    text = (tmp_path / "log").read_text()
    assert '"key": "loss_scale"' in text and '"key": "skipped_updates"' in text


def test_a_negative_number_of_growth_steps_is_one_line():
    with pytest.raises(UserError, match=r"config\.loss_scale_growth_steps=-1: must be at least 0"):
        toy.config(loss_scale_growth_steps=-1).validate()
