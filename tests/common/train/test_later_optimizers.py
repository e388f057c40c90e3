"""Tests runs with the rules of docs/optimizers.md: checkpoints, 16-bit precisions, and averages of the weights."""

import dataclasses

import numpy as np
import pytest

from common.config import benchmarks, rules
from common.config.schema import Communication
from common.distributed import replicas as backends
from common.errors import UserError
from common.optim import schedule_free
from common.train import checkpoint, checkpoint_file, events, warm_start
from common.train.loop import Loop
from common.train.probe import Probe
from common.train.profile import Profile, Span
from systems.compile import run, targets
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.distributed.test_sharded_update import LATER
from tests.common.train import toy
from tests.common.train.loops import weights_and_slots as values

SHARDED = {
    "replicas": "mirrored",
    "num_replicas": 4,
    "communication": Communication(shard_weight_update=True),
}
AVERAGING = ("schedule_free_sgd", "schedule_free_adamw")


def make(optimizer, task=toy.Task, root_start=2, **changes):
    rule = updates.OPTIMIZERS[optimizer]
    if "root_start" in rule.own_fields():
        rule = dataclasses.replace(rule, root_start=root_start)
    config = toy.config(
        **{"quality_target": 2.0, "optimizer": rule, "train_epochs": 2, "batch_norm_span": 16, **changes}
    )
    return Loop(task(config), backends.make(config))


def weights(loop):
    local = loop.replicas.local_results
    loop.replicas.refresh()
    return [local(v)[0].numpy() for v in loop.state.model.trainable_variables]


def first_epoch(loop, folder):
    """Trains one epoch, saves, and stops."""
    for event in loop.run(lambda _: checkpoint.save(loop, folder)):
        if isinstance(event, events.BlockStarted) and event.block.index == 1:
            return


@pytest.mark.parametrize("optimizer", LATER)
def test_a_run_resumes_bitwise_and_on_other_replicas(tmp_path, optimizer):
    whole = make(optimizer, precision="fp64")
    list(whole.run())
    first = make(optimizer, precision="fp64")
    first_epoch(first, tmp_path)
    resumed = make(optimizer, precision="fp64")
    resumed.compile()
    assert checkpoint.restore_latest(resumed, tmp_path) == 4
    list(resumed.run())
    for mine, theirs in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    many = make(optimizer, precision="fp64", **SHARDED)
    assert checkpoint.restore_latest(many, tmp_path) == 4
    list(many.run())
    for mine, theirs in zip(weights(many), weights(whole), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("backend", [{}, SHARDED, {"replicas": "pjrt"}], ids=["single", "sharded", "pjrt"])
@pytest.mark.parametrize("optimizer", AVERAGING)
def test_a_run_that_stops_within_a_block_resumes_bitwise_in_fp32(tmp_path, optimizer, backend):
    processes.require(backend.get("replicas", "single"))
    long = {"num_train_examples": 16 * 200, "train_epochs": 1, **backend}  # A block of 200 steps.
    whole, first, resumed = (make(optimizer, **long) for _ in range(3))
    list(whole.run())
    for event in first.run(lambda _: checkpoint.save(first, tmp_path)):
        if isinstance(event, events.Progress) and event.step > 1:
            first.stop("SIGTERM")
    step = checkpoint.restore_latest(resumed, tmp_path)
    assert 0 < step < 200
    list(resumed.run())
    for mine, theirs in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("optimizer", AVERAGING)
def test_steps_to_record_change_no_weight(tmp_path, optimizer):
    whole, cut = make(optimizer), make(optimizer)
    cut.profile = Profile(Span(2, 3), tmp_path)
    for loop in (whole, cut):
        list(loop.run())
    for mine, theirs in zip(values(cut), values(whole), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", LATER)
def test_slots_are_fp32_in_16_bits_and_the_run_follows_fp32(optimizer, precision):
    """In fp16 the first updates overflow and are skipped, which leaves every slot as it was."""
    scale = {"loss_scale": 2.0**24, "loss_scale_growth_steps": 50} if precision == "fp16" else {}
    loop = make(optimizer, precision=precision, train_epochs=5, **scale)
    losses = [x for e in loop.run() if isinstance(e, events.Trained) for x in e.losses]
    assert all(x.dtype == np.float32 and np.isfinite(x).all() for x in values(loop))
    assert np.mean(losses[-4:]) < 0.9 * np.mean(losses[:4])
    if scale:
        assert loop.state.loss_scale.report()["skipped_updates"] > 0


@pytest.mark.parametrize("optimizer", ["shampoo", "soap"])
def test_roots_and_bases_survive_a_first_update_that_overflows(optimizer):
    loop = make(optimizer, precision="fp16", root_start=1, loss_scale=2.0**24, loss_scale_growth_steps=50)
    list(loop.run())
    assert loop.state.loss_scale.report()["skipped_updates"] > 0
    assert all(np.isfinite(x).all() for x in values(loop))


@pytest.mark.parametrize("backend", [{}, {"replicas": "pjrt"}], ids=["single", "pjrt"])
@pytest.mark.parametrize("optimizer", AVERAGING)
def test_kept_examples_show_the_averages_and_leave_the_weights(optimizer, backend):
    class Looking(toy.Task):
        def look(self, model, batch):
            return {str(i): w.read_value() for i, w in enumerate(model.trainable_variables)}

    processes.require(backend.get("replicas", "single"))
    loop = make(optimizer, Looking, **backend)
    list(loop.run())
    before = weights(loop)
    z = [slots["z"] for slots in loop.state.update.read_slots()]
    seen = Probe(loop).look({})
    for i, (y, one) in enumerate(zip(before, z, strict=True)):
        expected = schedule_free.averaged(loop.config.optimizer, y, one)
        np.testing.assert_allclose(seen[str(i)], expected, rtol=1e-5, atol=1e-6)
    for after, y in zip(weights(loop), before, strict=True):
        np.testing.assert_array_equal(after, y)


class Watched(toy.Task):
    """Evaluates to the sum of the squares of the weights that the evaluation sees."""

    def evaluate(self, model, batch):
        import tensorflow as tf

        outputs = super().evaluate(model, batch)
        squares = tf.add_n(
            [tf.reduce_sum(tf.cast(v, tf.float64) ** 2) for v in map(tf.convert_to_tensor, _of(model))]
        )
        count = tf.cast(self.config.num_replicas, tf.float64)
        return dataclasses.replace(outputs, sums={**outputs.sums, "squares": squares / count})


def _of(model):
    return model.trainable_variables


@pytest.mark.parametrize(
    "backend",
    [{}, SHARDED, {"replicas": "pjrt", "num_replicas": 2}, {**SHARDED, "replicas": "pjrt"}],
    ids=["single", "mirrored sharded", "pjrt", "pjrt sharded"],
)
@pytest.mark.parametrize("optimizer", AVERAGING)
def test_an_evaluation_uses_the_averages_and_leaves_the_weights(optimizer, backend):
    processes.require(backend.get("replicas", "single"))
    loop = make(optimizer, Watched, precision="fp64", **backend)
    sums, _ = Probe(loop).evaluate()
    expected = sum((w**2).sum() for w in weights(loop))
    batches = loop.clock.eval_steps
    np.testing.assert_allclose(sums["squares"], batches * expected, rtol=1e-9)
    list(loop.run())
    before = weights(loop)
    z = [slots["z"] for slots in loop.state.update.read_slots()]
    averages = [schedule_free.averaged(loop.config.optimizer, y, one) for y, one in zip(before, z)]
    sums, _ = Probe(loop).evaluate()
    np.testing.assert_allclose(sums["squares"], batches * sum((x**2).sum() for x in averages), rtol=1e-9)
    assert max(np.abs(x - y).max() for x, y in zip(averages, before)) > 1e-3
    for after, y in zip(weights(loop), before, strict=True):
        np.testing.assert_array_equal(after, y)


@pytest.mark.parametrize("optimizer", AVERAGING)
def test_exports_and_new_runs_take_the_averages_from_a_checkpoint(tmp_path, optimizer):
    loop = make(optimizer, precision="fp64")
    list(loop.run())
    path = checkpoint.save(loop, tmp_path)
    trained, used = (checkpoint_file.read(path, training) for training in (True, False))
    changed = 0
    for name, weight in used.arrays.items():
        slots = trained.arrays.get(f"slots/{name.removeprefix('weights/')}/z")
        if slots is None:
            np.testing.assert_array_equal(weight, trained.arrays[name])
            continue
        expected = schedule_free.averaged(loop.config.optimizer, trained.arrays[name], slots)
        np.testing.assert_allclose(weight, expected, rtol=1e-12)
        changed += 1
    assert changed == len(weights(loop))
    evaluated, _ = Probe(loop).evaluate()
    other = make(optimizer, precision="fp64")
    checkpoint.restore_weights(other.state, path)
    np.testing.assert_allclose(Probe(other).evaluate()[0]["correct"], evaluated["correct"])
    started = warm_start.read(path, other.state, other.task)
    for name, array in started.items():
        if f"weights/{name}" in used.arrays:
            np.testing.assert_array_equal(array, used.arrays[f"weights/{name}"])


@pytest.mark.parametrize("name", ["shampoo", "soap"])
def test_a_sharded_step_compiles_for_absent_devices(name, tmp_path):
    """Through the compilers of a TPU and a GPU, where this environment has them (`make aot`)."""
    kinds = ("tpu-v3", "h100")
    try:
        for kind in kinds:
            run.compiler_python(targets.target(kind, 1).platform)
    except UserError as error:
        pytest.skip(str(error))
    kinds_left_out = benchmarks.module("mnist", "presets").PRESETS["cpu-tiny"].optimizer.skip_kinds
    changes = {"nesterov": True} if name == "shampoo" else {}  # As its authors' code.
    rule = rules.named(name, base_learning_rate=1e-7, weight_decay=0.01, skip_kinds=kinds_left_out, **changes)
    usual = dataclasses.asdict(type(rule)()) | {"name": ""}
    changed = {field: value for field, value in dataclasses.asdict(rule).items() if value != usual[field]}
    fields = {f"optimizer.{field}": value for field, value in changed.items()}
    fields |= {"division": "open", "replicas": "pjrt"}
    fields |= {"num_replicas": 8, "communication.shard_weight_update": True, "schedule.kind": "constant"}
    flags = [f"--config.{f}={','.join(v) if isinstance(v, tuple) else v}" for f, v in fields.items()]
    manifest = run.export("mnist", "cpu-tiny", tmp_path, flags, lambda _: None, "train")
    (program,) = manifest["programs"]
    for kind in kinds:
        target = targets.target(kind, 8)
        report = run.compiled(tmp_path, manifest, program, target, lambda _: None, tmp_path / "reports")
        assert not report.get("error") and report["fits"] and report["needed_bytes"] > 0
