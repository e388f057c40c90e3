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


def test_dense_frames_are_eight_apart_from_every_start() -> None:
    """With a window of 64 and 8 frames, a video of 70 frames has the starts 0 .. 6."""
    starts = set()
    for epoch in range(200):
        frames = sampling.train_frames(70, 8, Data(), sampling.generator(0, epoch, 0))
        assert np.all(np.diff(frames) == 8)
        starts.add(int(frames[0]))
    assert starts == set(range(7))


def test_ten_test_clips_start_at_equal_distances() -> None:
    clips = sampling.eval_frames(300, 8, Data())
    np.testing.assert_array_equal(clips[:, 0], np.linspace(0, 236, 10).astype(int))
    assert clips[-1, -1] == 236 + 56 < 300


def test_a_short_video_goes_round() -> None:
    frames = sampling.train_frames(10, 8, Data(), sampling.generator(0, 0, 0))
    np.testing.assert_array_equal(frames, np.arange(8) * 8 % 10)


def test_uniform_takes_a_frame_of_each_segment() -> None:
    data = Data(sampling="uniform", eval_clips=1)
    frames = sampling.train_frames(80, 8, data, sampling.generator(0, 0, 0))
    np.testing.assert_array_equal(frames // 10, np.arange(8))
    np.testing.assert_array_equal(sampling.eval_frames(80, 8, data)[0], np.arange(8) * 10 + 5)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 50), st.sampled_from([1, 3]))
def test_windows_lie_inside(height: int, width: int, epoch: int, crops: int) -> None:
    data = dataclasses.replace(Data(), eval_crops=crops, eval_size=224)
    trained = sampling.train_window(height, width, data, sampling.generator(3, epoch, 0))
    tested = sampling.eval_windows(height, width, data)
    assert tested.shape == (crops, 4)
    for top, left, tall, wide in [trained, *tested]:
        assert top >= 0 and left >= 0 and tall > 0 and wide > 0
        assert top + tall <= height and left + wide <= width


def test_multi_scale_crops_are_the_published_sizes() -> None:
    """Sides 256, 224, 192, 168 of a short side of 256, height and width at most one step apart."""
    seen = set()
    for epoch in range(400):
        window = sampling.train_window(256, 340, Data(), sampling.generator(0, epoch, 0))
        seen.add((int(window[2]), int(window[3])))
    sides = [256, 224, 192, 168]
    assert seen == {(h, w) for i, h in enumerate(sides) for j, w in enumerate(sides) if abs(i - j) < 2}


@pytest.mark.parametrize(
    ("size", "lefts"), [((256, 340), [0, 42, 84]), ((340, 256), [0, 0, 0]), ((256, 256), [0, 0, 0])]
)
def test_three_crops_span_the_long_side(size: tuple[int, int], lefts: list[int]) -> None:
    windows = sampling.eval_windows(*size, Data(eval_crops=3))
    assert windows[:, 1].tolist() == lefts and set(windows[:, 2]) == {256}
    centre = sampling.eval_windows(*size, Data(eval_crops=1))
    np.testing.assert_array_equal(centre[0], windows[1])


def test_draws_depend_on_seed_epoch_and_video() -> None:
    draws = [sampling.generator(*key).random() for key in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len(set(draws)) == 4 and sampling.generator(0, 0, 0).random() == draws[0]
