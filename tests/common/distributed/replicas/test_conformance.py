"""Tests that every backend equals one replica whose virtual batch-norm groups are the backend's groups.

To add a backend, add its worlds to WORLDS. Networks run in float64, where rounding cannot hide a difference. Whole
trajectories are compared for the toy only; a ResNet's are chaotic, so that its single updates from equal weights are
compared. Backends of several processes make all their calls in one start of the processes. The full-width ResNet-50
and the ResNets except that of four mirrored replicas in pairs are marked e2e.
"""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from common.config.optimizer import Lars
from common.config.run_length import RunLength
from common.data import tfrecords
from common.distributed import replicas as backends
from common.distributed.replicas.base import Shard
from common.layers.precision import precision
from common.train import events
from common.train.programs import Programs
from common.train.state import State
from common.train.step import make_train_step
from resnet.presets import PRESETS
from resnet.task import Task
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import run

# (backend, replicas). In the last four worlds each replica is a process; "pjrt x 2" is pjrt in two processes.
WORLDS = [
    ("mirrored", 1), ("mirrored", 2), ("mirrored", 4), ("pjrt", 1), ("pjrt", 2), ("pjrt", 4), ("pjrt", 8),
    ("pjrt x 2", 4), ("horovod", 2), ("horovod", 4), ("multiworker", 2), ("multiworker", 4),
]  # fmt: skip
GROUPS = [1, 2, 4]
LARGEST = 4


def difference(x, y):
    """Relative L2 distance; 0 where both are zero."""
    distance = np.linalg.norm(np.ravel(x - y).astype(np.float64))
    return distance / max(np.linalg.norm(np.ravel(y).astype(np.float64)), np.finfo(np.float64).tiny)


def on(backend, number, config):
    return dataclasses.replace(config, replicas=backend.partition(" ")[0], num_replicas=number)


def groups_of(number):
    return [group for group in GROUPS if group <= number]


def shared(state):
    """[(name, values by replica)] of the state that replicas share: weights, slots, merged moments, the step.

    The last evaluated step is not included: only the first process, which writes the checkpoints, has it.
    """
    local = state.replicas.local_results
    alike = [v for v in state.variables() if "moving" not in v.name and v is not state.evaluated]
    return [(v.name, [x.numpy() for x in local(v)]) for v in alike]


# -- called in every process -------------------------------------------------------------------------------------


def free_run(backend, number, **changes):
    """(losses, qualities, shared variables) of 20 steps of the toy."""
    config = on(backend, number, toy.config(train_steps=20, quality_target=2.0, **changes))
    loop = Programs(toy.Task(config), backends.make(config))
    history = run(loop)
    losses = [x for e in history if isinstance(e, events.Trained) for x in e.losses]
    return losses, [e.value for e in history if isinstance(e, events.Evaluated)], shared(loop.state)


def held_out_labels(backend, number, folder):
    """Labels and weights of the batches of a process's replicas."""
    config = dataclasses.replace(PRESETS["cpu-tiny"], image_size=8, num_classes=60, num_eval_examples=53)
    config = on(backend, number, dataclasses.replace(config, eval_batch_size=8))
    task, replicas = Task(config, folder), backends.make(config)
    batches = []
    for step in replicas.dataset(lambda shard: task.eval_input(shard, 8 // number)):
        batches += zip(*([x.numpy() for x in replicas.local_results(step[n])] for n in ("label", "weight")))
    return batches


# -- worlds ------------------------------------------------------------------------------------------------------


class Here(dict):
    """Like processes.Results for this process alone; makes each call when its result is looked up."""

    def __getitem__(self, name):
        return [super().__getitem__(name)()]


def toys(number):
    """The (precision, group) to compare; fewer on four processes, which take longer to trace."""
    every = [(p, g) for p in ("fp64", "fp32") for g in groups_of(number)]
    return every if number < LARGEST else [*every[:3], ("fp32", 2)]


class Worlds:
    """Results of the calls of each world, whose processes start at the first look-up."""

    def __init__(self, folder, weights):
        self._folder, self._weights, self._ran = folder, weights, {}

    def __call__(self, backend, number, resnets=False):
        """Results by name; `resnets`: those of ResNet-50, which has its own start of the processes."""
        key = backend, number, resnets
        name, _, count = backend.partition(" x ")
        processes.require(name)
        if key not in self._ran:
            calls = (self._resnets if resnets else self._small)(backend, number)
            if backend in ("mirrored", "pjrt"):  # All replicas are in this process.
                self._ran[key] = Here({name: functools.cache(call) for name, call in calls.items()})
            else:
                self._ran[key] = processes.run(name, int(count or number), calls, timeout=580)
        return self._ran[key]

    def _small(self, backend, number):
        run = functools.partial(free_run, backend, number)
        calls = {
            f"toy {p} {g}": functools.partial(run, precision=p, batch_norm_span=g * 16 // number)
            for p, g in toys(number)
        }
        calls["accumulated"] = functools.partial(run, accumulation_steps=2, **accumulating(number))
        calls["held out"] = functools.partial(held_out_labels, backend, number, self._folder)
        return calls

    def _resnets(self, backend, number):
        paths = {g: self._weights(g * 16 // number) for g in groups_of(number)}
        steps = functools.partial(resnet_differences, backend, number, traced=False)
        return {f"resnet {g}": functools.partial(steps, group=g, path=path) for g, path in paths.items()}


@pytest.fixture(scope="module")
def worlds(held_out, resnet_weights):
    return Worlds(str(held_out[53]), resnet_weights)


def accumulating(number):
    """A configuration whose batch-norm span is one of two micro-batches."""
    lars = Lars(base_learning_rate=5.0, weight_decay=1e-3)
    return {"precision": "fp64", "batch_norm_span": 8 // number, "optimizer": lars}


@functools.cache
def single_run(name, span):
    return free_run("single", 1, precision=name, batch_norm_span=span)


def check_run(results, expected, tolerance, moments=True):
    """Compares losses, qualities and variables of every process with one replica's, and bitwise with each other's."""
    expected_losses, expected_qualities, variables = expected
    first = [copies[0] for _, copies in results[0][2]]
    for losses, _, mine in results:
        np.testing.assert_allclose(losses, expected_losses, rtol=tolerance)
        for (name, copies), leader, (_, (other,)) in zip(mine, first, variables, strict=True):
            assert all(np.array_equal(leader, copy) for copy in copies), f"replicas differ in {name}"
            assert (not moments and "merged" in name) or difference(leader, other) <= tolerance, name
    # Only the first process evaluates.
    assert not moments or [r[1] for r in results] == [expected_qualities, *[[]] * (len(results) - 1)]


@pytest.mark.parametrize(
    "backend, number, name, group", [(b, n, p, g) for b, n in WORLDS for p, g in toys(n)]
)
def test_toy_runs_free_as_on_one_replica(worlds, backend, number, name, group):
    expected = single_run(name, group * 16 // number)
    assert len(expected[1]) == 5
    # The roundings of 20 float32 steps: eight replicas of pjrt differ by 1.4e-5 (jaxlib 0.7.1: 7e-6), others by less.
    tolerance = {"fp64": 1e-8, "fp32": 2e-5 if (backend, number) == ("pjrt", 8) else 1e-5}[name]
    check_run(worlds(backend, number)[f"toy {name} {group}"], expected, tolerance)


@pytest.mark.parametrize("backend, number", WORLDS)
def test_accumulated_micro_batches_of_several_replicas(worlds, backend, number):
    """Only the moving moments differ, because they see the groups one by one."""
    expected = free_run("single", 1, **accumulating(number))
    check_run(worlds(backend, number)["accumulated"], expected, 1e-8, moments=False)


@pytest.mark.parametrize("backend, number", WORLDS)
def test_replicas_see_each_held_out_example_once(worlds, backend, number):
    by_process = worlds(backend, number)["held out"]
    assert len({len(batches) for batches in by_process}) == 1, "unequal work"
    check_each_once([batch for batches in by_process for batch in batches], 53)


# -- ResNet-50 -----------------------------------------------------------------------------------------------


def resnet_config(backend, number, width, span):
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], precision="fp64", width=width, global_batch_size=16, batch_norm_span=span,
        optimizer=Lars(base_learning_rate=2.0, weight_decay=1e-4),
    )  # fmt: skip
    (config := on(backend, number, config)).validate()
    return config


class Stepper:
    """Training steps of a backend on given batches, from given weights."""

    def __init__(self, config, traced=True):
        self.config, self.replicas = config, backends.make(config)
        task, policy = Task(config, None), precision(config.precision)
        self.state = State(task, self.replicas, policy)
        step = make_train_step(task, self.state, RunLength.of(config))
        self._size = config.global_batch_size // config.num_replicas

        def run(batches, number):
            return self.replicas.sum(self.replicas.run(step, (next(batches), number)))

        self._run = tf.function(run, autograph=False) if traced else run

    def __call__(self, batch, number):
        examples = tf.data.Dataset.from_tensor_slices(batch)

        def local_batches(shard):
            """A process has consecutive examples, as in a run, so that its replicas' spans are one replica's."""
            count = self.config.global_batch_size // shard.count
            return examples.skip(shard.index * count).take(count).batch(self._size, drop_remainder=True)

        batches = iter(self.replicas.dataset(local_batches))
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
    rng, shape = np.random.default_rng(3), [config.global_batch_size, *[config.image_size] * 2, 3]
    for _ in range(count):
        labels = rng.integers(0, config.num_classes, shape[0])
        yield {
            "image": rng.integers(0, 256, shape).astype(np.uint8),
            "label": labels.astype(np.int32),
            "weight": np.ones(shape[0], np.float32),
        }


STARTS = [0, 5, 20]


def save_weights(path, width, span):
    """Saves one replica's weights and slots before and after the steps STARTS, and their losses, to `path`."""
    single = Stepper(resnet_config("single", 1, width, span))
    arrays = {}
    for number, batch in enumerate(batches_of(single.config, max(STARTS) + 1)):
        before = single.values() if number in STARTS else []
        loss = single(batch, number)
        if number in STARTS:
            arrays[f"{number} loss"] = loss
            arrays |= {f"{number} before {i}": v for i, v in enumerate(before)}
            arrays |= {f"{number} after {i}": v for i, v in enumerate(single.values())}
    np.savez(path, **arrays)
    return path


def resnet_differences(backend, number, group, traced, path, width=8):
    """Largest relative difference from one replica, of the loss and of every update, at each of STARTS.

    Four replicas in one process take 45 s to trace and 4 s for an eager step; the toy and the full width are traced.
    """
    many, saved = Stepper(resnet_config(backend, number, width, group * 16 // number), traced), np.load(path)
    actual = {}
    for step, batch in enumerate(batches_of(many.config, max(STARTS) + 1)):
        if step not in STARTS:
            continue
        count = range(len(many.values()))
        before, after = ([saved[f"{step} {when} {i}"] for i in count] for when in ("before", "after"))
        many.load(before)
        differences = [abs(many(batch, step) / saved[f"{step} loss"] - 1)]
        differences += [difference(m - b, a - b) for b, m, a in zip(before, many.values(), after)]
        actual[step] = max(differences)
    return actual


@pytest.fixture(scope="module")
def resnet_weights(tmp_path_factory):
    """The path of the file of `save_weights`, by span and width."""
    folder = tmp_path_factory.mktemp("weights")
    return functools.cache(
        lambda span, width=8: save_weights(str(folder / f"{span}_{width}.npz"), width, span)
    )


@pytest.mark.parametrize(
    "backend, number, group",
    [
        pytest.param(b, n, g, marks=[] if (b, n, g) == ("mirrored", LARGEST, 2) else [pytest.mark.e2e])
        for b, n in WORLDS
        for g in groups_of(n)
        if (b, n) != ("mirrored", 1)
    ],
)
def test_resnet50_steps_from_equal_weights(worlds, backend, number, group):
    """All 53 convolutions at an eighth of the width, from the weights after 0, 5 and 20 steps."""
    for differences in worlds(backend, number, resnets=True)[f"resnet {group}"]:
        assert set(differences) == set(STARTS) and max(differences.values()) <= 1e-8


@pytest.mark.e2e
@pytest.mark.parametrize("group", GROUPS)
def test_full_width_resnet50_steps_from_equal_weights(resnet_weights, group):
    path = resnet_weights(group * 16 // LARGEST, width=64)
    differences = resnet_differences("mirrored", LARGEST, group, True, path, width=64)
    assert max(differences.values()) <= 1e-8


# -- Padded evaluation ---------------------------------------------------------------------------------------


def numbered(count):
    """Records of images; an image's label is its number."""
    image = tf.io.encode_jpeg(np.zeros([8, 8, 3], np.uint8)).numpy()
    return [tfrecords.example({"image/encoded": image, "image/class/label": i + 1}) for i in range(count)]


def check_each_once(batches, count):
    """Checks (labels, weights) of batches: every number below `count` once, and padding."""
    labels, weights = (np.concatenate(column) for column in zip(*batches))
    assert sorted(labels[weights == 1]) == list(range(count))
    assert set(labels[weights != 1]) <= {-1} and set(weights) <= {0, 1}


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    """Makes folders of n held-out images in three files."""
    folders = {}
    for n in (1, 7, 16, 53):
        folder = folders[n] = tmp_path_factory.mktemp(f"eval{n}")
        for part in range(3):
            tfrecords.write(folder / tfrecords.shard_name("validation", part, 3), numbered(n)[part::3])
    return folders


@settings(max_examples=20, deadline=None)
@given(
    n=st.sampled_from([1, 7, 16, 53]),
    batch=st.integers(1, 9),
    local=st.integers(1, 5),
    hosts=st.integers(1, 3),
)
def test_padded_evaluation_counts_each_example_once(held_out, n, batch, local, hosts):
    """Each host's stream feeds its replicas in turn, and all do equal work."""
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], image_size=8, num_classes=60, num_eval_examples=n, num_replicas=local * hosts,
        replicas="mirrored", eval_batch_size=batch * local * hosts,
    )  # fmt: skip
    task = Task(config, str(held_out[n]))
    streams = [list(task.eval_input(Shard(i, hosts), batch)) for i in range(hosts)]
    assert len({len(stream) for stream in streams}) == 1, "unequal work"
    assert len(streams[0]) % local == 0
    if hosts == 1:
        assert len(streams[0]) == RunLength.of(config).eval_steps * local
    batches = [b for stream in streams for b in stream]
    assert {b["label"].shape[0] for b in batches} == {batch}
    check_each_once([(b["label"], b["weight"]) for b in batches], n)
