"""Tests the language model against stock layers and numpy in float64, and its carried state."""

import dataclasses
import functools
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from common.distributed import replicas as backends
from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.train import checkpoint, checkpoint_file, events
from common.train.describe import describe
from common.train.probe import Probe
from common.train.programs import Programs
from ptb import model, tiny
from ptb.config import Config
from ptb.presets import PRESETS, hyperparameters
from ptb.task import Task
from tests.common.train.loops import run, saves, stops

BATCH, STEPS, WORDS, UNITS = 3, 4, 11, 5


def second_begins(event):
    return isinstance(event, events.BlockStarted) and event.interval.index == 1


SMALL = Config(
    global_batch_size=BATCH, eval_batch_size=BATCH, num_steps=STEPS, vocabulary_size=WORDS, units=UNITS
)


def batches(count: int) -> list[list[np.ndarray]]:
    """Batches [words, stream, keep, targets]; the first and the third reset the state."""
    rng = np.random.default_rng(3)
    return [
        [
            rng.integers(0, WORDS, [BATCH, STEPS]),
            np.arange(BATCH),
            np.full([BATCH], float(i not in (0, 2))),
            rng.integers(0, WORDS, [BATCH, STEPS]),
        ]
        for i in range(count)
    ]


def logits_of(network: tf_keras.Model, batch: list[np.ndarray], training: bool = True) -> tf.Tensor:
    words, stream, keep, _ = batch
    logits, state = network([words, network.carried.read(stream, keep, training)])
    network.carried.write(stream, state, training)
    return logits


def gradients(call, targets, variables) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        logits = call()
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)) / BATCH
    return [logits, *map(tf.convert_to_tensor, tape.gradient(loss, variables))]


def test_equals_stateful_stock_layers_over_four_steps() -> None:
    tf_keras.utils.set_random_seed(5)
    ours = model.build(SMALL, Single(), precision("fp64"))
    words = tf_keras.Input([STEPS], BATCH, dtype="int64")
    x = tf_keras.layers.Embedding(WORDS, UNITS, dtype="float64")(words)
    for _ in range(2):
        x = tf_keras.layers.LSTM(UNITS, return_sequences=True, stateful=True, unroll=True, dtype="float64")(x)
    theirs = tf_keras.Model(words, tf_keras.layers.Dense(WORDS, dtype="float64")(x))
    for mine, other in zip(ours.trainable_variables, theirs.trainable_variables, strict=True):
        other.assign(mine)
    for batch in batches(4):
        words, _, keep, targets = batch
        if not keep.any():
            theirs.reset_states()
        mine = gradients(functools.partial(logits_of, ours, batch), targets, ours.trainable_variables)
        other = gradients(functools.partial(theirs, words), targets, theirs.trainable_variables)
        for actual, want in zip(mine, other, strict=True):
            np.testing.assert_allclose(actual, want, rtol=1e-8, atol=1e-12)


def test_evaluation_has_a_state_of_its_own() -> None:
    network = model.build(SMALL, Single(), precision("fp64"))
    layer = network.carried
    first, second = batches(2)
    logits_of(network, first)
    before = layer.train_state.numpy()
    assert before.any() and not layer.eval_state.numpy().any()
    logits_of(network, second, training=False)
    np.testing.assert_array_equal(layer.train_state, before)
    assert layer.eval_state.numpy().any()


def test_a_stream_finds_its_state_in_any_order_of_rows() -> None:
    network = model.build(SMALL, Single(), precision("fp64"))
    batch = batches(2)[1]
    states = np.random.default_rng(0).normal(size=network.carried.train_state.shape)
    results = []
    for order in ([0, 1, 2], [2, 0, 1]):
        network.carried.train_state.assign(states)
        logits = logits_of(network, [part[order] for part in batch]).numpy()
        results.append((logits[np.argsort(order)], network.carried.train_state.numpy()))
    for actual, want in zip(*results):
        np.testing.assert_allclose(actual, want, rtol=1e-12)


def test_describe_counts_the_published_sizes() -> None:
    description = describe(Task(Config(), None), hyperparameters(Config()))
    # 10,000 x 200, two cells of 400 x 800 + 800, 200 x 10,000 + 10,000.
    assert description["parameters"] == 2_000_000 + 2 * (400 * 800 + 800) + 2_010_000
    assert description["forward_macs_per_example"] == 20 * (2 * 400 * 800 + 200 * 10_000)
    assert (description["steps_per_epoch"], description["train_steps"]) == (2323, 13 * 2323)


def test_initial_weights_are_uniform_and_biases_of_the_cells_zero() -> None:
    network = model.build(SMALL, Single(), precision("fp32"))
    for variable in network.trainable_variables:
        values = variable.numpy()
        assert np.abs(values).max() <= 0.1
        assert values.any() == ("lstm" not in variable.name or "bias" not in variable.name)


def test_the_forget_gates_start_where_the_configuration_says() -> None:
    network = model.build(dataclasses.replace(SMALL, forget_bias=1.0), Single(), precision("fp32"))
    biases = [v.numpy() for v in network.trainable_variables if "lstm" in v.name and "bias" in v.name]
    assert [list(np.flatnonzero(b)) for b in biases] == [list(range(UNITS, 2 * UNITS))] * 2


def test_dropout_masks_embedding_and_outputs_in_training_alone() -> None:
    """Equals the layers applied one by one, with the masks in between, to 1e-12."""
    network = model.build(dataclasses.replace(SMALL, dropout=0.5), Single(), precision("fp64"))
    reader, words = network.get_layer("reader"), tf.constant(batches(1)[0][0])
    masks = [d(tf.ones([STEPS, BATCH, UNITS], tf.float64), training=True) for d in reader.dropouts]
    masks = [tf.transpose(mask, [1, 0, 2]) for mask in masks]
    assert len({m.numpy().tobytes() for m in masks}) == 3
    for layer in reader.dropouts:
        layer.draws.assign(tf.zeros_like(layer.draws))
    state = tf.zeros([BATCH, 4 * UNITS], tf.float64)
    for training in (True, False):
        x, zeros = reader.embedding(words), tf.zeros([BATCH, UNITS], tf.float64)
        for lstm, mask in zip([None, *reader.lstms], masks, strict=True):
            if lstm:
                x = tf.transpose(lstm(tf.transpose(x, [1, 0, 2]), (zeros, zeros))[0], [1, 0, 2])
            x = x * mask if training else x
        want = network.get_layer("logits")(x)
        np.testing.assert_allclose(
            network([words, state], training=training)[0], want, rtol=1e-12, atol=1e-14
        )


def test_precision_bf16_keeps_logits_and_state_in_fp32() -> None:
    network = model.build(SMALL, Single(), precision("bf16"))
    logits = logits_of(network, batches(1)[0])
    assert logits.dtype == network.carried.train_state.dtype == tf.float32


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("language")
    tiny.generate(folder)
    return folder


def loop(data_dir: pathlib.Path, **changes) -> Programs:
    """A small loop of eleven steps without a target; it evaluates after the fourth and the eighth step."""
    fixed = {
        "units": 8, "train_steps": 11, "steps_per_block": 4, "quality_target": 1.0, "eval_batch_size": 40,
    }  # fmt: skip
    config = dataclasses.replace(PRESETS["cpu-tiny"], **{**fixed, **changes})
    return Programs(Task(config, str(data_dir)), backends.make(config))


def losses(results: list[events.Event]) -> np.ndarray:
    trained = [loss for e in results if isinstance(e, events.Trained) for loss in e.losses]
    return np.array([*trained, *(e.value for e in results if isinstance(e, events.Evaluated))])


def test_replicas_and_micro_batches_carry_what_one_replica_does(data_dir) -> None:
    one = losses(run(loop(data_dir, precision="fp64")))
    assert len(one) == 11 + 3
    two = losses(run(loop(data_dir, precision="fp64", replicas="mirrored", num_replicas=2)))
    np.testing.assert_allclose(two, one, rtol=1e-8)
    for compiled in ("off", "on"):
        parts = loop(data_dir, precision="fp64", accumulation_steps=4, compile=compiled)
        np.testing.assert_allclose(losses(run(parts)), one, rtol=1e-8)


@pytest.mark.parametrize("number", [1, 2])
def test_a_resumed_run_takes_up_the_carried_state_on_any_number_of_replicas(
    data_dir, tmp_path, number
) -> None:
    """Resumes in the middle of the streams: bitwise on as many replicas, otherwise up to rounding."""
    whole = loop(data_dir, precision="fp64")
    expected = losses(run(whole))
    first = loop(data_dir, precision="fp64")
    run(first, stops(second_begins), save=saves(tmp_path))
    backend = {"replicas": "mirrored", "num_replicas": 2} if number == 2 else {}
    resumed = loop(data_dir, precision="fp64", **backend)
    resumed.compile()
    assert checkpoint.restore_latest(resumed, tmp_path).step == 4
    layer = resumed.state.model.carried
    assert np.concatenate([x.numpy() for x in resumed.replicas.local_results(layer.train_state)]).any()
    after = losses(run(resumed))
    # Seven steps and two evaluations are left.
    reference = np.concatenate([expected[4:11], expected[12:]])
    if number == 1:
        np.testing.assert_array_equal(after, reference)
    np.testing.assert_allclose(after, reference, rtol=1e-8)


def test_an_evaluation_in_other_batches_begins_without_the_carried_state(
    data_dir, tmp_path, monkeypatch
) -> None:
    """A checkpoint in the middle of the streams gives the logged value, whatever the training batch."""
    monkeypatch.setattr(checkpoint, "_digest", lambda _: "that of all")
    logged = losses(run(loop(data_dir, precision="fp64"), stops(second_begins), save=saves(tmp_path)))[-1]
    (path,) = checkpoint_file.checkpoints(tmp_path)
    for sizes in ({"global_batch_size": 10}, {"eval_batch_size": 10}):
        other = loop(data_dir, precision="fp64", **sizes)
        checkpoint.restore_weights(other.state, path)
        value = other.task.quality(*Probe(other).evaluate()).value
        # With fewer streams, fewer words are predicted from an empty state.
        assert value == pytest.approx(logged, rel=1e-12 if "global_batch_size" in sizes else 0.05)
    # Training from this checkpoint would need state rows that it lacks.
    with pytest.raises(
        UserError, match=r"carried/carried/eval_state is \[1, 40, 32\] there, \[1, 10, 32\] here"
    ):
        checkpoint.restore_latest(other, tmp_path)


def test_equal_seeds_give_equal_runs(data_dir) -> None:
    first, again, other = (losses(run(loop(data_dir, seed=seed))) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


def test_a_state_that_is_not_carried_misses_the_target(data_dir) -> None:
    """The deliberate fault loses the topic of the text at every step."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], carry=False)
    results = run(Programs(Task(config, str(data_dir)), backends.make(config)))
    values = [e.value for e in results if isinstance(e, events.Evaluated)]
    assert len(values) == 13 and min(values) > config.quality_target
    assert results[-1].status == "aborted"


def test_quality_is_perplexity_and_lower_is_better() -> None:
    task = Task(SMALL, None)
    words = SMALL.num_eval_examples - 1
    for perplexity, reached in ((116.4, True), (116.6, False)):
        quality = task.quality({"loss": np.log(perplexity) * words, "words": words}, {})
        assert quality.value == pytest.approx(perplexity) and quality.reached is reached
    assert task.quality({"loss": 1e9 * words, "words": words}, {}).value == pytest.approx(np.exp(700.0))
    with pytest.raises(ValueError, match="words predicted"):
        task.quality({"loss": 1.0, "words": words - 1}, {})


def _first(network: tf_keras.Model, words: np.ndarray, state: tf.Tensor) -> tf.Tensor:
    return network([words, state])[0]


def test_bfloat16_is_of_products_alone() -> None:
    """A bias in bfloat16 too would have a gradient that is off by some percent, which changes perplexities."""
    cpu = pathlib.Path("/proc/cpuinfo")
    # On processors without bfloat16 products, rounding alone amounts to 0.0133 (AVX2).
    bound = 0.01 if not cpu.exists() or "avx512_bf16" in cpu.read_text() else 0.015
    actual = {}
    for name in ("fp32", "bf16"):
        tf_keras.utils.set_random_seed(5)
        config = dataclasses.replace(SMALL, global_batch_size=64, vocabulary_size=50, units=16)
        network = model.build(config, Single(), precision(name))
        rng = np.random.default_rng(0)
        words, targets = (rng.integers(0, 50, [64, STEPS]) for _ in range(2))
        state = tf.zeros([64, model.state_size(config)])
        values = gradients(
            functools.partial(_first, network, words, state), targets, network.trainable_variables
        )
        assert all(value.dtype == tf.float32 for value in values)
        actual[name] = values
    for value, want in zip(actual["bf16"], actual["fp32"], strict=True):
        assert tf.norm(value - want) < bound * tf.norm(want)
