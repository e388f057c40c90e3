"""Tests training on 1, 2, 4 and 8 devices in float64 against one device, and resumption by another number.

In "zero-1" each device updates a part of every weight; in "zero-3" it holds a part of every weight.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator

import numpy as np
import pytest

from common.config.optimizer import LazyAdam
from common.config.schema import Communication
from common.distributed import replicas
from common.errors import UserError
from common.train import checkpoint, checkpoint_variables
from common.train.guard import Guard
from common.train.programs import Programs
from llama31_8b.presets import PRESETS
from llama31_8b.task import Task
from tests.common.distributed import updates
from tests.common.distributed.replicas import processes
from tests.llama31_8b import texts
from tests.llama31_8b.small import changed

STEPS, SAVED = 50, 20
FORMS = {
    "zero-1": {"communication": Communication(weight_update="sharded")},
    "zero-3": {"shard_weights": True},
}
# Sizes of which 8 divides few. The clip applies in most steps.
BASE = changed(
    global_batch_size=8, eval_batch_size=8, num_eval_examples=5, sequence_length=6, vocab_size=23, kv_heads=1,
    layers=1, hidden=21, recompute=True, logit_chunks=3, attention="blocks", train_steps=STEPS,
    optimizer=dataclasses.replace(PRESETS["h200-8"].optimizer, base_learning_rate=3e-3, clip_norm=0.5),
)  # fmt: skip


@pytest.fixture(autouse=True)
def several_buckets() -> Iterator[None]:
    with updates.buckets_of(4000):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    processes.require("pjrt")
    return tmp_path_factory.mktemp("text")


def programs(folder: pathlib.Path, **changes: object) -> Programs:
    text = texts.write(folder, BASE.vocab_size, BASE.sequence_length)
    fields = {"data": text.data, "num_train_examples": text.num_train_examples, **changes}
    config = dataclasses.replace(BASE, **fields)
    config.validate()
    return Programs(Task(config, str(folder)), replicas.make(config))


def on(folder: pathlib.Path, form: str, number: int, micro: int = 1) -> Programs:
    return programs(folder, replicas="pjrt", num_replicas=number, accumulation_steps=micro, **FORMS[form])


def trained(run: Programs, first: int, last: int) -> list[float]:
    """The losses of steps first + 1 to last."""
    return run.call(run.train_input(first), run.synthetic(False), last - first, 0).losses.tolist()


def evaluated(run: Programs) -> float:
    result = run.call(run.synthetic(True), iter(run.eval_input()), 0, run.run_length.eval_steps)
    return run.task.quality(result.sums, result.arrays).value


@functools.cache
def expected(folder: pathlib.Path) -> tuple[list[float], dict[str, np.ndarray], float]:
    """The whole update on one device: the losses, all variables, and the evaluation."""
    run = programs(folder)
    losses = trained(run, 0, STEPS)
    return losses, dict(checkpoint_variables.values(run.state)), evaluated(run)


def check(run: Programs, losses: list[float], folder: pathlib.Path) -> None:
    theirs, variables, quality = expected(folder)
    np.testing.assert_allclose(losses, theirs[-len(losses) :], rtol=1e-9)
    ours = dict(checkpoint_variables.values(run.state))
    assert ours.keys() == variables.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, variables[name], rtol=1e-7, atol=1e-9, err_msg=name)
    assert evaluated(run) == pytest.approx(quality, rel=1e-9)


@pytest.mark.parametrize("number", [1, 2, 4, 8])
@pytest.mark.parametrize("form", FORMS)
def test_devices_equal_the_whole_update(form: str, number: int, folder: pathlib.Path) -> None:
    run = on(folder, form, number, micro={1: 4, 2: 2}.get(number, 1))
    check(run, trained(run, 0, STEPS), folder)


def test_micro_batches_in_bfloat16_equal_one_batch_but_for_rounding(folder: pathlib.Path) -> None:
    """Sums are float32: AdamW's first moment, a tenth of the clipped gradient, has the error of a few roundings."""
    how = {"replicas": "pjrt", "precision": "bf16"}
    one, eight = (programs(folder, accumulation_steps=n, **how) for n in (1, 8))
    np.testing.assert_allclose(trained(eight, 0, 1), trained(one, 0, 1), rtol=1e-3)
    moments = ([x for _, name, x in run.state.update.each_slot() if name == "m"] for run in (eight, one))
    for ours, theirs in zip(*moments, strict=True):
        assert ours.dtype == np.float32
        assert np.linalg.norm(ours - theirs) < 2**-6 * np.linalg.norm(theirs)


@pytest.mark.parametrize(
    ("before", "after"), [(("zero-3", 4), ("zero-1", 2)), (("zero-1", 2), ("zero-3", 8))], ids=str
)
def test_another_number_and_form_go_on_from_a_checkpoint(
    before: tuple[str, int], after: tuple[str, int], folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    first, second = on(folder, *before), on(folder, *after)
    trained(first, 0, SAVED)
    checkpoint.save(first, tmp_path)
    assert checkpoint.restore_latest(second, tmp_path).step == SAVED
    check(second, trained(second, SAVED, STEPS), folder)


def test_each_device_holds_a_part_and_an_evaluation_elsewhere_the_whole(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    run = on(folder, "zero-3", 8)
    whole = programs(folder).state
    local = run.replicas.local_results
    for mine, other in zip(run.state.model.trainable_variables, whole.model.trainable_variables, strict=True):
        parts = [copy.numpy() for copy in local(mine)]
        assert [part.shape for part in parts] == [(-(-other.shape.num_elements() // 8),)] * 8
        np.testing.assert_array_equal(
            np.concatenate(parts)[: other.shape.num_elements()], other.numpy().reshape(-1)
        )
    slots = [slot for slots in run.state.update.slots for slot in slots.values()]
    assert all(slot.shape.rank == 1 for slot in slots)
    # What compilation changes comes back; the guard compares nothing that differs.
    before = dict(checkpoint_variables.values(run.state))
    run.compile()
    np.testing.assert_equal(dict(checkpoint_variables.values(run.state)), before)
    assert all("positions" in name for name in Guard(run)._variables())
    trained(run, 0, 3)
    path, other = checkpoint.save(run, tmp_path), programs(folder)
    checkpoint.restore_weights(other.state, path)
    assert evaluated(other) == pytest.approx(evaluated(run), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replicas": "mirrored"}, "needs --config.replicas=pjrt"),
        (FORMS["zero-1"], "shards the update too"),
        ({"optimizer": LazyAdam(base_learning_rate=0.1)}, "lazy_adam"),
        ({"optimizer": dataclasses.replace(BASE.optimizer, clip_replica_norm=1.0)}, "use clip_norm"),
    ],
)  # fmt: skip
def test_what_sharded_weights_refuse(changes: dict, message: str) -> None:
    fields = {"replicas": "pjrt", "num_replicas": 2, **FORMS["zero-3"]}
    with pytest.raises(UserError, match=message):
        dataclasses.replace(BASE, **fields | changes).validate()
