"""Tests both detectors' loops on generated pictures: two replicas and resumed runs train as one replica does."""

import dataclasses
import importlib
from collections.abc import Callable

import numpy as np
import pytest

from common.config.optimizer import Sgd
from common.detection import drawing
from common.distributed import replicas
from common.train.programs import Programs
from tests.common.train import loops

PICTURES = drawing.Pictures(
    train_images=24, eval_images=5, train_files=2, eval_files=1, most=3, radius=(0.2, 0.38), empty=0.0
)
SMALL = {
    "ssd": {"width": 2, "image_size": 72},
    "maskrcnn": {"backbone_width": 2},
}  # fmt: skip


# Mask R-CNN takes minutes: it compiles a program per orientation, for training and for evaluation.
@pytest.fixture(scope="module", params=["ssd", pytest.param("maskrcnn", marks=pytest.mark.e2e)])
def make(request, tmp_path_factory) -> Callable[..., Programs]:
    """Returns make(**changes), a loop of four steps on generated pictures whose task keeps the scored arrays."""
    benchmark = request.param
    folder = tmp_path_factory.mktemp(benchmark)
    importlib.import_module(f"{benchmark}.tiny").generate(folder, PICTURES)
    preset = importlib.import_module(f"{benchmark}.presets").PRESETS["cpu-tiny"]
    Task = importlib.import_module(f"{benchmark}.task").Task  # noqa: N806

    class Here(Task):
        """Scores in this process, and omits the losses that each replica divides by its own number of objects.

        With these losses, as published, two replicas of two images train differently from one replica of four.
        """

        evaluate_in_worker = False

        def loss(self, model, batch):
            losses = super().loss(model, batch)
            return {name: term for name, term in losses.items() if name not in ("rpn_box", "box", "mask")}

        def quality(self, sums, arrays):
            self.answers = {name: np.asarray(x) for name, x in arrays.items()}
            return super().quality(sums, arrays)

    base = dataclasses.replace(
        preset, precision="fp64", num_train_examples=PICTURES.train_images,
        num_eval_examples=PICTURES.eval_images, global_batch_size=4, eval_batch_size=4, batch_norm_span=4,
        train_epochs=0.0, train_steps=4, steps_per_block=4, epochs_per_block=0.0,
        optimizer=Sgd(base_learning_rate=1e-3, momentum=0.9),
        eval_epochs=(), **SMALL[benchmark],
    )  # fmt: skip

    def make(**changes) -> Programs:
        config = dataclasses.replace(base, **changes)
        config.validate()
        task = Here(config, str(folder))
        task.check_input()
        return Programs(task, replicas.make(config))

    return make


@pytest.fixture(scope="module")
def alone(make):
    return loops.train(make())


def test_two_replicas_equal_one_and_compile_nothing_on_the_clock(make, alone) -> None:
    both = loops.train_compiled(make(replicas="mirrored", num_replicas=2))
    assert len(set(both[0])) == 4
    loops.assert_alike(both, alone, 1e-8, 1e-6, 1e-9)
    order, expected = (np.argsort(arrays["image_id"]) for arrays in (both[2], alone[2]))
    for name, values in alone[2].items():
        np.testing.assert_allclose(both[2][name][order], values[expected], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_resumed_run_goes_on_as_if_it_had_not_ended(make, alone, tmp_path) -> None:
    loops.assert_alike(loops.train_resumed(make, tmp_path), alone, 1e-12, 1e-10, 1e-13)
