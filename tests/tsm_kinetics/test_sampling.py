"""Tests sampled frames and crop windows: the published rules, and nothing outside a video."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsm_kinetics import sampling
from tsm_kinetics.config import Data


@given(
    st.integers(1, 500),
    st.sampled_from([8, 16, 32]),
    st.sampled_from(["dense", "uniform"]),
    st.integers(0, 9),
    st.integers(1, 12),
)
def test_sampled_frames_lie_inside_the_video(
    count: int, frames: int, kind: str, epoch: int, clips: int
) -> None:
    data = Data(sampling=kind, eval_clips=clips)
    rng = sampling.generator(1, epoch, 2)
    trained, tested = (
        sampling.train_frames(count, frames, data, rng),
        sampling.eval_frames(count, frames, data),
    )
    assert trained.shape == (frames,) and tested.shape == (clips, frames)
    for indices in (trained, tested):
        assert indices.min() >= 0 and indices.max() < count
    if count >= data.window:
        assert np.all(np.diff(trained) >= 0) and np.all(np.diff(tested) >= 0)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 50), st.sampled_from([1, 3]))
def test_windows_lie_inside(height: int, width: int, epoch: int, crops: int) -> None:
    data = dataclasses.replace(Data(), eval_crops=crops, eval_size=224)
    trained = sampling.train_window(height, width, 224, data, sampling.generator(3, epoch, 0))
    tested = sampling.eval_windows(height, width, data)
    assert tested.shape == (crops, 4)
    for top, left, tall, wide in [trained, *tested]:
        assert top >= 0 and left >= 0 and tall > 0 and wide > 0
        assert top + tall <= height and left + wide <= width


@pytest.mark.parametrize(
    ("size", "lefts"), [((256, 340), [0, 42, 84]), ((340, 256), [0, 0, 0]), ((256, 256), [0, 0, 0])]
)
def test_three_crops_span_the_long_side(size: tuple[int, int], lefts: list[int]) -> None:
    windows = sampling.eval_windows(*size, Data(eval_crops=3))
    assert windows[:, 1].tolist() == lefts and set(windows[:, 2]) == {256}
    center = sampling.eval_windows(*size, Data(eval_crops=1))
    np.testing.assert_array_equal(center[0], windows[1])


def test_draws_depend_on_seed_epoch_and_video() -> None:
    draws = [sampling.generator(*key).random() for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(draws)) == 4 and sampling.generator(0, 0, 0).random() == draws[0]
