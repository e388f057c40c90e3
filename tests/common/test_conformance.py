"""What every backend must equal: one replica whose virtual batch-norm groups are the backend's groups.

A backend joins by adding itself to BACKENDS. Networks run in float64, where rounding cannot hide a difference;
trajectories are compared for the toy only, for those of a ResNet are chaotic: there, single updates from equal
weights are. The full-width ResNet-50 is marked e2e.
"""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common import events, records
from common import replicas as backends
from common.clock import Clock
from common.config import Optimizer
from common.loop import Loop
from common.precision import precision
from common.replicas.base import Shard
from common.step import State, make_train_step
from resnet.config import PRESETS
from resnet.task import Task
from tests.common import toy

REPLICAS = 4
BACKENDS = ["mirrored"]
GROUPS = [1, 2, 4]


def difference(x, y):
    """Relative L2 distance; 0 where both are zero."""
    distance = np.linalg.norm(np.ravel(x - y).astype(np.float64))
    return distance / max(np.linalg.norm(np.ravel(y).astype(np.float64)), np.finfo(np.float64).tiny)


def on(backend, config):
    number = 1 if backend == "single" else REPLICAS
    return dataclasses.replace(config, replicas=backend, num_replicas=number)


def shared(state):
    """[(name, values by replica)] of all that replicas have alike: weights, slots, merged moments, counters."""
    local = state.replicas.local_results
    alike = [v for v in state.variables() if "moving" not in v.name]
    return [(v.name, [x.numpy() for x in local(v)]) for v in alike]


def free_run(backend, **changes):
    """(losses, qualities, shared variables) of 20 steps of the toy."""
    config = on(backend, toy.config(train_steps=20, quality_target=2.0, **changes))
    loop = Loop(toy.Task(config), backends.make(config))
    seen = list(loop.run())
    losses = [x for e in seen if isinstance(e, events.Trained) for x in e.losses]
    return losses, [e.value for e in seen if isinstance(e, events.Evaluated)], shared(loop.state)


@pytest.mark.parametrize("name, tolerance", [("fp64", 1e-8), ("fp32", 1e-5)])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_toy_runs_free_as_on_one_replica(backend, group, name, tolerance):
    changes = {"precision": name, "batch_norm_span": group * 16 // REPLICAS}
    losses, qualities, variables = free_run(backend, **changes)
    expected_losses, expected_qualities, expected = free_run("single", **changes)
    np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
    assert qualities == expected_qualities and len(qualities) == 5
    for (_, copies), (_, (other,)) in zip(variables, expected, strict=True):
        assert all(np.array_equal(copies[0], copy) for copy in copies), "replicas differ"
        assert difference(copies[0], other) <= tolerance


@pytest.mark.parametrize("backend, accumulation", [("single", 4), *((b, 2) for b in BACKENDS)])
def test_accumulated_micro_batches_equal_one_large_batch(backend, accumulation):
    """With the span of a micro-batch; the moving moments alone differ, which see their groups one by one."""
    span = 16 // accumulation // (1 if backend == "single" else REPLICAS)
    optimizer = Optimizer(name="lars", base_learning_rate=5.0, weight_decay=1e-3)
    changes = {"precision": "fp64", "batch_norm_span": span, "optimizer": optimizer}
    losses, _, variables = free_run(backend, accumulation_steps=accumulation, **changes)
    expected_losses, _, expected = free_run("single", **changes)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-8)
    for (name, copies), (_, (other,)) in zip(variables, expected, strict=True):
        assert "merged" in name or difference(copies[0], other) <= 1e-8, name


# -- ResNet-50 -----------------------------------------------------------------------------------------------


def resnet_config(backend, width, group):
    config = dataclasses.replace(
        PRESETS["cpu-tiny"],
        precision="fp64",
        width=width,
        global_batch_size=16,
        batch_norm_span=group * 16 // REPLICAS,
        optimizer=Optimizer(name="lars", base_learning_rate=2.0, weight_decay=1e-4),
    )
    config = on(backend, config)
    config.validate()
    return config


class Stepper:
    """Training steps of a backend on given batches, from given weights."""

    def __init__(self, config, traced=True):
        self.config, self.replicas = config, backends.make(config)
        task, policy = Task(config, None), precision(config.precision)
        self.state = State(task, self.replicas, policy)
        step = make_train_step(task, self.state, policy, Clock.of(config))
        self._size = config.global_batch_size // config.num_replicas

        def run(batches, number):
            return self.replicas.sum(self.replicas.run(step, (next(batches), number)))

        self._run = tf.function(run, autograph=False) if traced else run

    def __call__(self, batch, number):
        parts = tf.data.Dataset.from_tensor_slices(batch).batch(self._size, drop_remainder=True)
        batches = iter(self.replicas.dataset(lambda shard: parts))
        return float(self._run(batches, tf.constant(number, tf.int64)))

    def load(self, values):
        for variable, value in zip(self._variables(), values, strict=True):
            for copy in self.replicas.local_results(variable):
                copy.assign(value)

    def values(self):
        return [self.replicas.local_results(v)[0].numpy() for v in self._variables()]

    def _variables(self):
        slots = [slot for slots in self.state.update.slots for slot in slots.values()]
        return [*self.state.model.trainable_variables, *slots]


def batches_of(config, count):
    """Seeded noise and labels."""
    rng = np.random.default_rng(3)
    for _ in range(count):
        shape = [config.global_batch_size, config.image_size, config.image_size, 3]
        labels = rng.integers(0, config.num_classes, shape[0])
        yield {
            "image": rng.integers(0, 256, shape).astype(np.uint8),
            "label": labels.astype(np.int32),
            "weight": np.ones(shape[0], np.float32),
        }


def check_resnet_steps(backend, width, groups, starts, traced):
    """One step from the weights that one replica has after `starts` steps, against that replica's own.

    Four replicas take 45 s to trace and 4 s for an eager step; the toy above and the full width are traced.
    """
    for group in groups:
        single = Stepper(resnet_config("single", width, group))
        many = Stepper(resnet_config(backend, width, group), traced)
        batches = list(batches_of(many.config, max(starts) + 1))
        for number, batch in enumerate(batches):
            before = single.values()
            loss = single(batch, number)
            if number not in starts:
                continue
            many.load(before)
            assert many(batch, number) == pytest.approx(loss, rel=1e-8)
            for old, mine, other in zip(before, many.values(), single.values(), strict=True):
                assert difference(mine - old, other - old) <= 1e-8, (group, number)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", GROUPS)
def test_resnet50_steps_from_equal_weights(backend, group):
    """All 53 convolutions, an eighth of the width; the starts are the issue's: 0, 5 and 20 steps."""
    check_resnet_steps(backend, 8, [group], [0, 5, 20], traced=False)


@pytest.mark.e2e
@pytest.mark.parametrize("backend", BACKENDS)
def test_full_width_resnet50_steps_from_equal_weights(backend):
    check_resnet_steps(backend, 64, GROUPS, [0, 5, 20], traced=True)


# -- Padded evaluation ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Folders of n held-out images in three files; the label of an image is its number."""
    folders = {}
    for n in (1, 7, 16, 53):
        folder = folders[n] = tmp_path_factory.mktemp(f"eval{n}")
        image = tf.io.encode_jpeg(np.zeros([8, 8, 3], np.uint8)).numpy()
        examples = [records.example({"image/encoded": image, "image/class/label": i + 1}) for i in range(n)]
        for part in range(3):
            records.write(folder / records.shard_name("validation", part, 3), examples[part::3])
    return folders


@settings(max_examples=20, deadline=None)
@given(
    n=st.sampled_from([1, 7, 16, 53]),
    batch=st.integers(1, 9),
    here=st.integers(1, 5),
    hosts=st.integers(1, 3),
)
def test_padded_evaluation_counts_each_example_once(held_out, n, batch, here, hosts):
    """Every host's stream feeds its replicas in turn; all do equal work."""
    config = dataclasses.replace(
        PRESETS["cpu-tiny"],
        image_size=8,
        num_classes=60,
        num_eval_examples=n,
        num_replicas=here * hosts,
        replicas="mirrored",
        eval_batch_size=batch * here * hosts,
    )
    task = Task(config, str(held_out[n]))
    streams = [list(task.eval_input(Shard(i, hosts), batch)) for i in range(hosts)]
    assert len({len(stream) for stream in streams}) == 1, "unequal work"
    assert len(streams[0]) % here == 0
    if hosts == 1:
        assert len(streams[0]) == Clock.of(config).eval_steps * here
    batches = [b for stream in streams for b in stream]
    assert {b["label"].shape[0] for b in batches} == {batch}
    labels, weights = (np.concatenate([b[name] for b in batches]) for name in ("label", "weight"))
    assert sorted(labels[weights == 1]) == list(range(n))
    assert set(labels[weights != 1]) <= {-1} and set(weights) <= {0, 1}


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_stream_of_several_replicas_resumes_where_it_was(backend, tmp_path):
    image = tf.io.encode_jpeg(np.zeros([8, 8, 3], np.uint8)).numpy()
    examples = [records.example({"image/encoded": image, "image/class/label": i + 1}) for i in range(20)]
    records.write(tmp_path / "train-00000-of-00001", examples)
    config = dataclasses.replace(PRESETS["cpu-tiny"], image_size=8, num_classes=20, global_batch_size=8)
    config = on(backend, config)
    task, replicas = Task(config, str(tmp_path)), backends.make(config)

    def labels(start, steps):
        stream = iter(replicas.dataset(lambda shard: task.train_input(shard, 2, start)))
        return [
            [x.numpy().tolist() for x in replicas.local_results(next(stream)["label"])] for _ in range(steps)
        ]

    whole = labels(0, 7)
    assert labels(3, 4) == whole[3:] and labels(6, 1) == whole[6:]
