"""Tests the network: against numpy, its first loss, its parameters, what a token may see, its layers' other forms."""

import math

import numpy as np
import pytest
import tensorflow as tf

from common.distributed.replicas.single import Single
from common.errors import UserError
from common.layers.precision import precision
from common.layers.seeds import seeds
from common.layers.variable_kinds import kind_of
from common.train.describe import parameters
from common.train.multiply_adds import forward_macs
from llama31_8b import attention, model
from tests.llama31_8b.small import SMALL, changed, loss_and_gradients, network, transcribed, windows


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -float(np.mean(np.take_along_axis(log_p, labels[:, None], 1)))


def test_logits_loss_and_gradients_are_those_of_a_transcription() -> None:
    """Gradients along three random directions, by central differences of the transcription."""
    task, built = network()
    tokens = windows()
    weights = [v.numpy() for v in built.trainable_variables]
    for row, logits in zip(tokens, built(tokens[:, :-1]).numpy()):
        np.testing.assert_allclose(logits, transcribed(SMALL, weights, row[:-1]), rtol=1e-10, atol=1e-12)

    def loss(weights: list[np.ndarray]) -> float:
        return np.mean([cross_entropy(transcribed(SMALL, weights, row[:-1]), row[1:]) for row in tokens])

    value, *gradients = loss_and_gradients(task, built, tokens)
    assert value == pytest.approx(loss(weights), rel=1e-12)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        way = [rng.normal(size=w.shape) for w in weights]
        ahead, behind = ([w + sign * 1e-5 * d for w, d in zip(weights, way)] for sign in (1, -1))
        slope = (loss(ahead) - loss(behind)) / 2e-5
        assert slope == pytest.approx(sum(np.vdot(g, d) for g, d in zip(gradients, way)), rel=1e-6)


@pytest.mark.parametrize("kind", ["plain", "blocks"])
def test_a_token_changes_nothing_before_it(kind: str) -> None:
    _, built = network(changed(attention=kind))
    tokens = windows()[:, :-1]
    before = built(tokens).numpy()
    for place in (1, 6, 11):
        other = tokens.copy()
        other[:, place] = (other[:, place] + 1) % SMALL.vocab_size
        after = built(other).numpy()
        assert np.array_equal(after[:, :place], before[:, :place])
        assert (np.abs(after[:, place:] - before[:, place:]).max((0, 2)) > 1e-6).all()


def test_the_first_loss_is_that_of_the_initial_weights() -> None:
    """ln V + width * std^2 / 2: logits are normal with variance width * std^2 after the last norm."""
    config = changed(
        vocab_size=2000, width=256, init_std=0.1, sequence_length=64, global_batch_size=8, hidden=64
    )
    task = network(config)[0]
    built = task.build(Single(), precision("fp64"))
    loss = loss_and_gradients(task, built, windows(config))[0]
    assert loss == pytest.approx(math.log(2000) + 256 * 0.1**2 / 2, abs=0.06)


def test_the_two_initial_scales_and_the_kinds_of_weights() -> None:
    config = changed(width=256, hidden=512, layers=8, init_std=0.02)
    built = model.build(config, Single(), precision("fp32"))
    deviations = {v.name.split(":")[0]: float(np.std(v)) for v in built.trainable_variables}
    for name, deviation in deviations.items():
        if "norm" in name:
            assert deviation == 0, name
        else:
            small = name.endswith(("/output", "/down"))
            assert deviation == pytest.approx(0.02 / 4 if small else 0.02, rel=0.05), name
    kinds = kind_of(built)
    assert sorted(kinds.values()) == sorted(["embedding", *["kernel"] * 33, *["norm"] * 17])
    assert all((kinds[v.ref()] == "norm") == (v.shape.rank == 1) for v in built.trainable_variables)


def test_every_weight_has_its_own_numbers() -> None:
    built = model.build(SMALL, Single(), precision("fp64"))
    firsts = [float(v.numpy().flat[0]) for v in built.trainable_variables if v.shape.rank == 2]
    assert len(set(firsts)) == len(firsts)


def test_parameters_and_products_are_counted() -> None:
    built = model.build(SMALL, Single(), precision("fp32"))
    width, n = SMALL.width, SMALL.sequence_length
    matrices = width * (2 * width + 2 * SMALL.kv_heads * SMALL.head_size + 3 * SMALL.hidden)
    layer = matrices + 2 * width
    assert parameters(built) == 2 * layer + 2 * SMALL.vocab_size * width + width
    products = 2 * n * (matrices + 2 * width * n) + n * width * SMALL.vocab_size  # All pairs of positions.
    assert forward_macs(built) == products


@pytest.mark.parametrize(
    "fields",
    [
        {"recompute": True}, {"logit_chunks": 3}, {"logit_chunks": 6}, {"attention": "blocks"},
        {"attention": "blocks", "recompute": True, "logit_chunks": 2},
    ],
    ids=lambda fields: "-".join(fields),
)  # fmt: skip
@pytest.mark.parametrize("compiled", [False, True])
def test_other_forms_give_the_same_loss_and_gradients(fields: dict, compiled: bool) -> None:
    tokens = windows()
    want = loss_and_gradients(*network(), tokens)
    task, built = network(changed(**fields))
    if not compiled:
        results = loss_and_gradients(task, built, tokens)
    else:

        @tf.function(jit_compile=True, autograph=False)
        def step(tokens: tf.Tensor) -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                term = task.loss(built, {"tokens": tokens})["cross_entropy"]
                loss = term.total / term.weight
            return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, built.trainable_variables))]

        results = [x.numpy() for x in step(tf.constant(tokens))]
    for actual, expected in zip(results, want, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-13)


def test_an_evaluation_sums_real_windows_only() -> None:
    for chunks in (1, 4):
        task, built = network(changed(logit_chunks=chunks))
        tokens, want = windows(), []
        for row in tokens:
            want.append(loss_and_gradients(task, built, row[None])[0] * SMALL.sequence_length)
        for weight in ([1.0, 1.0], [1.0, 0.0]):
            sums = task.evaluate(built, {"tokens": tf.constant(tokens), "weight": tf.constant(weight)}).sums
            assert float(sums["loss"]) == pytest.approx(np.dot(want, weight), rel=1e-12)
            assert int(sums["windows"]) == sum(weight)


@pytest.mark.parametrize(
    ("platform", "capability", "kind"),
    [
        ("NVIDIA H200", 9.0, "fused"),
        ("Tesla T4", 7.5, "blocks"),
        ("NVIDIA T4", 7.5, "blocks"),
        ("", 9.0, "blocks"),
    ],
)
def test_the_fused_kernel_is_for_gpus_that_have_it(platform: str, capability: float, kind: str) -> None:
    replicas = Single()
    replicas.platform, replicas.compute_capability = platform, capability
    config = changed(precision="bf16", width=32, heads=4)

    @tf.function(jit_compile=True, autograph=False)
    def kinds() -> None:
        traced_kinds.append(attention.kind_of(config, replicas, precision("bf16")))

    traced_kinds = []
    kinds.get_concrete_function()
    assert traced_kinds == [kind]
    fused = changed(precision="bf16", attention="fused")
    if kind == "fused":
        assert attention.kind_of(fused, replicas, precision("bf16")) == "fused"
    else:
        with pytest.raises(UserError, match="compute capability 8.0 or more, not .*; use blocks"):
            attention.kind_of(fused, replicas, precision("bf16"))


def test_seeds_made_on_demand_are_those_made_at_once() -> None:
    on_demand, children = seeds(3), np.random.SeedSequence(3).spawn(300)
    assert [next(on_demand) for _ in children] == [int(child.generate_state(1)[0] >> 1) for child in children]
