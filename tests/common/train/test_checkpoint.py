"""Tests checkpoints of networks and of other replicas (test_pauses.py: of toys); damaged, foreign, unwritable files."""

import contextlib
import dataclasses
import errno
import json
import math
import os
import stat

import numpy as np
import pytest

from common.config.optimizer import Lars
from common.config.rules import SCHEDULES
from common.config.schema import Communication
from common.data import tfrecords
from common.distributed import replicas as backends
from common.errors import UserError
from common.layers.batch_norm import span_layers
from common.train import checkpoint, checkpoint_file, events
from common.train.programs import Programs
from resnet.presets import PRESETS
from resnet.task import Task
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.common.train import toy
from tests.common.train.loops import at_step, bits, make, run, saves, stops


def toy_loop(replicas="single", number=1, **changes):
    optimizer = Lars(base_learning_rate=1.0, weight_decay=1e-3)
    return make(optimizer=optimizer, replicas=replicas, num_replicas=number, **changes)


def run_until(loop, folder, step=None):
    """Trains, saving between blocks; stops the run at `step`."""
    return run(loop, at_step(step or math.inf), save=saves(folder))[-1]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    import tensorflow as tf

    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", 40), ("validation", 10)):
        pixels = [rng.integers(0, 256, [24, 24, 3]).astype(np.uint8) for _ in range(count)]
        features = [
            {"image/encoded": tf.io.encode_jpeg(p).numpy(), "image/class/label": i % 12 + 1}
            for i, p in enumerate(pixels)
        ]
        tfrecords.write(folder / tfrecords.shard_name(split, 0, 1), map(tfrecords.example, features))
    return folder


def test_resnet50_stopped_inside_a_block_resumes_bitwise(tmp_path, images):
    """Full depth, a sixteenth of the width, real augmentation; the run stops within a block, as after SIGTERM."""
    config = dataclasses.replace(
        PRESETS["cpu-tiny"], width=4, image_size=24, num_train_examples=40, num_eval_examples=10,
        global_batch_size=8, eval_batch_size=8, train_epochs=6.0, epochs_per_block=3.0,
    )  # fmt: skip

    def loop():
        return Programs(Task(config, str(images)), backends.make(config))

    whole = loop()
    run(whole)
    first = loop()
    run_until(first, tmp_path, 5)
    stopped = int(first.state.step)
    assert 5 <= stopped < 30
    # Reuses the first network with its state spoilt, which is cheaper than building a third one.
    assert checkpoint.restore_latest(first, tmp_path).step == stopped
    first.block.allow()
    run(first)
    assert bits(first) == bits(whole) and int(first.state.step) == 30


@pytest.mark.parametrize("backend, other", [("pjrt", "mirrored"), ("mirrored", "pjrt"), ("single", "pjrt")])
def test_a_run_goes_on_under_another_backend(tmp_path, backend, other):
    """Four steps under one backend, four under another with a sharded update: those of the first alone."""
    processes.require("pjrt")
    communication = Communication(weight_update="sharded")

    def build(replicas):
        changes = {"communication": communication} if replicas != "single" else {}
        number = 1 if replicas == "single" else 4
        return toy_loop(replicas, number, precision="fp64", batch_norm_span=16, train_epochs=2, **changes)

    whole, first = build(backend), build(backend)
    run(whole)
    run(
        first,
        stops(lambda e: isinstance(e, events.BlockStarted) and e.interval.index == 1),
        save=saves(tmp_path),
    )
    resumed = build(other)
    resumed.compile()
    assert checkpoint.restore_latest(resumed, tmp_path).step == 4
    history = run(resumed)
    assert [e.value for e in history if isinstance(e, events.Evaluated)]
    checkpoint.save(resumed, tmp_path)
    again = build(backend)
    assert checkpoint.restore_latest(again, tmp_path).step == 8
    for mine, theirs in zip(again.state.snapshot(), whole.state.snapshot(), strict=True):
        np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("number", [1, 2])
def test_fewer_replicas_merge_the_moments(tmp_path, number):
    many = toy_loop("mirrored", 4, train_epochs=1)
    run(many)
    checkpoint.save(many, tmp_path)
    few = toy_loop("single" if number == 1 else "mirrored", number, train_epochs=1)
    assert checkpoint.restore_latest(few, tmp_path).step == 4
    (layer,), (restored,) = span_layers(many.state.model), span_layers(few.state.model)
    local = many.replicas.local_results
    means = np.stack([x.numpy() for x in local(layer.moving_mean)]).astype(np.float64)
    variances = np.stack([x.numpy() for x in local(layer.moving_variance)]).astype(np.float64)
    mean, variance = means.mean((0, 1)), variances.mean((0, 1)) + means.var((0, 1))
    for copy in few.replicas.local_results(restored.moving_mean):
        np.testing.assert_allclose(copy.numpy()[0], mean, rtol=1e-6)
    for copy in few.replicas.local_results(restored.moving_variance):
        np.testing.assert_allclose(copy.numpy()[0], variance, rtol=1e-6)
    for mine, other in zip(
        few.state.model.trainable_variables, many.state.model.trainable_variables, strict=True
    ):
        for copy in few.replicas.local_results(mine):
            np.testing.assert_array_equal(copy.numpy(), other.numpy())


def canonical(runner):
    """Weights and slots in the shapes of the weights, and the counter."""
    return [*runner.weights(), *runner.slots(), runner.state.step.numpy()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns save(number, sharded): a folder with a checkpoint after 5 steps, and the run that wrote it."""
    runs = {}

    def save(number, sharded):
        if (number, sharded) not in runs:
            communication = updates.sharded() if sharded else Communication()
            runner = updates.Runner("mirrored", number, "lazy_adam", communication)
            runner.steps(5)
            runner.state.step.assign(5)
            folder = tmp_path_factory.mktemp("sharded")
            checkpoint.save(runner, folder)
            runs[number, sharded] = folder, canonical(runner), runner.steps(15, first=5), canonical(runner)
        return runs[number, sharded]

    return save


@pytest.mark.parametrize(
    "before, after",
    [((4, True), (n, True)) for n in (1, 2, 3, 4)]
    + [((4, True), (1, False)), ((4, True), (3, False)), ((1, False), (4, True)), ((4, False), (2, True))],
)
def test_any_number_of_replicas_restores_a_sharded_checkpoint(saved, before, after):
    folder, at_5, losses, at_20 = saved(*before)
    number, sharded = after
    # Other buckets and, where possible, another route, so that replicas hold different shards.
    algorithm = "2d" if number == 4 and before[0] != 4 else "flat"
    communication = updates.sharded(algorithm=algorithm) if sharded else Communication()
    runner = updates.Runner("mirrored", number, "lazy_adam", communication, bucket_bytes=700)
    assert checkpoint.restore_latest(runner, folder).step == 5
    for mine, other in zip(canonical(runner), at_5, strict=True):
        np.testing.assert_array_equal(mine, other)
    np.testing.assert_allclose(runner.steps(15, first=5), losses, rtol=1e-8)
    assert updates.furthest(canonical(runner)[:-1], at_20[:-1]) <= 1e-8


@pytest.mark.parametrize("optimizer", ["lars", "adagrad"])
def test_a_sharded_checkpoint_is_that_of_the_whole_update(tmp_path, optimizer):
    """Names, shapes and values up to rounding; the order in the file may differ."""
    files = []
    for communication in (Communication(), updates.sharded(algorithm="2d")):
        runner = updates.Runner("mirrored", 4, optimizer, communication)
        runner.steps(3)
        path = checkpoint.save(runner, tmp_path / str(len(files)))
        with np.load(path) as file:
            files.append({name: file[name] for name in file.files if name != "meta"})
    whole, sharded = files
    assert sharded.keys() == whole.keys()
    assert updates.furthest([sharded[name] for name in whole], list(whole.values())) < 1e-12


def test_another_wire_is_another_configuration(tmp_path):
    runner = updates.Runner("single", 1, "sgd")
    checkpoint.save(runner, tmp_path)
    other = updates.Runner("single", 1, "sgd", Communication(wire="bf16_sum"))
    with pytest.raises(UserError, match="config.communication.wire: full there, bf16_sum here"):
        checkpoint.restore_latest(other, tmp_path)


@pytest.fixture(scope="module")
def loop():
    return toy_loop(train_epochs=1)


def test_only_the_last_two_stay_and_partial_files_do_not_count(tmp_path, loop):
    for step in (1, 2, 3):
        loop.state.step.assign(step)
        path = checkpoint.save(loop, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint_00000002.npz",
        "checkpoint_00000003.npz",
    ]
    (tmp_path / "checkpoint_00000009.partial").write_bytes(path.read_bytes()[:100])
    loop.state.step.assign(0)
    assert checkpoint.restore_latest(loop, tmp_path).step == 3
    assert checkpoint.restore_latest(loop, tmp_path / "absent") is None


def test_a_save_removes_what_a_killed_one_left_behind(tmp_path, loop):
    for name in ("checkpoint_00000001.partial", "checkpoint_mine.partial", "result_0.txt.partial"):
        (tmp_path / name).write_bytes(b"half")
    # A name like those of `common.files.whole`.
    (folder := tmp_path / ".checkpoint_00000001.npz.a0_b1c2d.partial").mkdir()
    (folder / "checkpoint_00000001.npz").write_bytes(b"half")
    loop.state.step.assign(2)
    path = checkpoint.save(loop, tmp_path)
    others = ["checkpoint_mine.partial", "result_0.txt.partial"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, *others]


def test_a_new_name_is_synced_before_an_older_checkpoint_is_removed(tmp_path, loop, monkeypatch):
    listings, fsync = [], os.fsync

    def watched(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            listings.append(sorted(p.name for p in tmp_path.iterdir()))
            # The error of a file system that cannot sync folders.
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", watched)
    names = []
    for step in (1, 2):
        loop.state.step.assign(step)
        names.append(checkpoint.save(loop, tmp_path, keep=1).name)
    assert listings == [names[:1], names]
    assert [p.name for p in tmp_path.iterdir()] == names[1:]


def parts_of(path):
    """A checkpoint's (note, arrays)."""
    with np.load(path) as file:
        arrays = dict(file)
    return json.loads(arrays.pop("meta").tobytes()), arrays


def rewrite(path, meta, arrays):
    np.savez(path, **arrays, meta=np.frombuffer(json.dumps(meta).encode(), np.uint8))


def damages(data):
    middle = len(data) // 2
    yield "empty", b""
    yield "cut short", data[:middle]
    yield "cut at the end", data[:-10]
    yield "not a checkpoint", b"hello" * 100
    yield "a lone array", np.zeros(3).tobytes()
    for place in range(50, len(data), len(data) // 25):
        yield f"flipped at {place}", data[:place] + bytes([data[place] ^ 255]) + data[place + 1 :]


def test_damaged_files_are_named_and_change_nothing(tmp_path, loop):
    loop.state.step.assign(7)
    path = checkpoint.save(loop, tmp_path)
    before = bits(loop)
    for damage, data in damages(path.read_bytes()):
        path.write_bytes(data)
        try:
            # Damage to data that zip files store twice.
            assert checkpoint.restore_latest(loop, tmp_path).step == 7, damage
        except UserError as error:
            assert str(path) in str(error) and "\n" not in str(error), damage
        assert bits(loop) == before, damage


def test_a_file_that_cannot_be_read_now_is_not_set_aside(tmp_path, loop, monkeypatch):
    for step in (7, 8):
        loop.state.step.assign(step)
        checkpoint.save(loop, tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())

    def stale(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(checkpoint_file.npz, "opened", stale)
    with pytest.raises(UserError, match="checkpoint_00000008.npz: cannot read: Stale file handle"):
        checkpoint.restore_latest(loop, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize("restore", [checkpoint.restore_latest, checkpoint.restore_weights])
def test_a_moment_of_another_shape_is_named_and_changes_nothing(tmp_path, loop, restore):
    meta, arrays = parts_of(path := checkpoint.save(loop, tmp_path))
    name = "moments/sync_batch_norm/mean"
    rewrite(path, meta, {**arrays, name: np.ones([1, 1, 3], np.float32)})
    before = bits(loop)
    with pytest.raises(UserError, match=rf"{name} is \[1, 1, 3\] there, \[1, 1, 16\] here"):
        if restore is checkpoint.restore_weights:
            restore(loop.state, path)
        else:
            restore(loop, tmp_path)
    assert bits(loop) == before


def test_another_configuration_is_refused_and_the_field_named(tmp_path, loop):
    checkpoint.save(loop, tmp_path)
    other = Programs(
        toy.Task(dataclasses.replace(loop.config, seed=5, batch_norm_span=8)), backends.make(loop.config)
    )
    before = bits(other)
    with pytest.raises(UserError, match=r"other settings .*batch_norm_span: 0 there, 8 here.*seed: 0 there"):
        checkpoint.restore_latest(other, tmp_path)
    assert bits(other) == before


def test_fields_that_an_older_checkpoint_lacks_do_not_hide_the_cause(tmp_path, loop, monkeypatch):
    write, later = checkpoint.to_dict, ("one_warmup_delta", "sums_examples")

    def older(config):
        values = write(config)
        return values | {"optimizer": {k: v for k, v in values["optimizer"].items() if k not in later}}

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "to_dict", older)
        checkpoint.save(loop, tmp_path)
    other = Programs(toy.Task(dataclasses.replace(loop.config, seed=5)), backends.make(loop.config))
    with pytest.raises(UserError, match=r"other settings \(config.seed: 0 there, 5 here\)"):
        checkpoint.restore_latest(other, tmp_path)


def test_full_disk_leaves_the_older_checkpoints(tmp_path, loop, monkeypatch):
    loop.state.step.assign(1)
    good = checkpoint.save(loop, tmp_path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    loop.state.step.assign(2)
    with pytest.raises(UserError, match="No space left on device; free space there"):
        checkpoint.save(loop, tmp_path)
    assert list(tmp_path.iterdir()) == [good]


def test_a_folder_that_is_not_shared_is_named(tmp_path, loop, monkeypatch):
    monkeypatch.setattr(loop.state.replicas, "all_reduce_max", lambda value: max(value, 4))
    with pytest.raises(
        UserError, match="process 0 found step -1, another one did not; use a folder .* share"
    ):
        checkpoint.restore_latest(loop, tmp_path)


def test_a_checkpoint_with_a_field_that_is_gone_resumes_if_its_value_is_the_constant(tmp_path, loop):
    meta, arrays = parts_of(path := checkpoint.save(loop, tmp_path))
    meta["digest"] = "of an earlier version"
    for value, resumes in ((1, True), (2, False)):
        meta["config"]["steps_per_execution"] = value
        rewrite(path, meta, arrays)
        if resumes:
            assert checkpoint.restore_latest(loop, tmp_path).step == meta["step"]
        else:
            with pytest.raises(UserError, match="written by a run with other settings"):
                checkpoint.restore_latest(loop, tmp_path)


@pytest.mark.parametrize(
    ("group", "values", "message"),
    [
        ("schedule", {}, ""),
        ("schedule", {"power": 3.0}, ""),
        ("schedule", {"decay_over_whole_run": True}, ""),
        (
            "schedule",
            {"warmup_curve": "exponential"},
            'npz: .*warmup_curve="exponential": earlier .* constant',
        ),
        ("schedule", {"initial_learning_rate": 0.1}, "initial_learning_rate=0.1: earlier .* use the version"),
        (
            "optimizer",
            {"base_learning_rate": 3.0},
            r"\(config.optimizer.base_learning_rate: 3.0 there, 1.0 here\)",
        ),
    ],
)
def test_of_an_earlier_version_only_what_another_run_read_counts(tmp_path, loop, group, values, message):
    meta, arrays = parts_of(path := checkpoint.save(loop, tmp_path))
    config = meta["config"] | {"first_block_epochs": 0.0, "first_block_steps": 0}
    config["schedule"] = dataclasses.asdict(SCHEDULES.every_field(loop.config.schedule))
    config[group] |= values
    rewrite(path, meta | {"digest": "of an earlier version", "config": config}, arrays)
    with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
        assert checkpoint.restore_latest(loop, tmp_path)


def test_a_checkpoint_of_another_format_is_one_line(tmp_path, loop):
    """Format 1 did not state its format."""
    meta, arrays = parts_of(path := checkpoint.save(loop, tmp_path))
    del meta["format"]
    for more, actual in (({}, 1), ({"format": 3}, 3)):
        rewrite(path, meta | more, arrays)
        with pytest.raises(
            UserError, match=f"npz: a checkpoint of format {actual}, this version reads 2; use"
        ):
            checkpoint.restore_latest(loop, tmp_path)


def test_a_checkpoint_has_the_names_of_the_layers_and_says_what_it_is(tmp_path, loop):
    file = checkpoint_file.read(checkpoint.save(loop, tmp_path))
    assert {"weights/dense.0/kernel", "weights/dense.1/bias", "slots/dense.0/kernel/momentum"} <= set(
        file.arrays
    )
    assert file.meta["benchmark"] == "resnet" and file.meta["labels"] == [] and file.assets == {}
    assert file.meta["config"]["global_batch_size"] == 16


@pytest.mark.parametrize("place", ["meta", "name", "arrays"])
def test_places_of_the_step_that_contradict_each_other_are_refused(tmp_path, loop, place):
    """A renumbered file would start as a fresh run, with a score."""
    meta, arrays = parts_of(path := checkpoint.save(loop, tmp_path))
    if place == "name":
        path.rename(tmp_path / f"checkpoint_{meta['step'] + 1:08d}.npz")
    else:
        meta["step"] += place == "meta"
        arrays["step"] += place == "arrays"
        rewrite(path, meta, arrays)
    with pytest.raises(
        UserError, match=r"npz: meta says step \d+, its (name|arrays) step \d+; use the file as"
    ):
        checkpoint.restore_latest(loop, tmp_path)
