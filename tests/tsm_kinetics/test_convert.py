"""Tests conversions of videos that end with one line, and the sampled frames and crop windows."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.data import folder_conversion
from common.data.folder_conversion import Options
from common.data.report import Finding
from common.errors import UserError
from tests import custom_sources
from tsm_kinetics import convert, custom_data, sampling
from tsm_kinetics.config import Data


@pytest.mark.parametrize("start", ["", "x", "inf"])
def test_a_time_of_a_kinetics_list_that_is_no_number_is_named(tmp_path: Path, start: str) -> None:
    source = tmp_path / "train.csv"
    source.write_text(
        f"label,youtube_id,time_start,time_end,split\na,one,1,11,train\nb,two,{start},11,train\n"
    )
    with pytest.raises(UserError, match=r"train.csv: line 3: time_start and time_end must be numbers"):
        convert.items(source)


@pytest.mark.parametrize("place", ["b_c", "val"])
def test_a_video_of_a_kinetics_list_may_be_in_any_folder_and_container(tmp_path: Path, place: str) -> None:
    path = tmp_path / place / "one_000001_000011.webm"
    path.parent.mkdir()
    path.touch()
    (tmp_path / "list.csv").write_text("label,youtube_id,time_start,time_end,split\nb  c,one,1,11,Val\n")
    assert convert.listed(tmp_path / "list.csv") == [(convert.Item(str(path), "b c"), "val")]


@pytest.mark.parametrize(
    ("there", "other"),
    [
        ("run/X.mp4", "small/run/X.mp4"),
        ("run/X.mp4", "run/X.webm"),
        ("X.mp4", "small/X.mp4"),
        ("a/run/X.mkv", "walk/X.mp4"),
        ("val/run/X.mp4", "train/run/X.mp4"),
    ],
)
def test_a_video_of_a_kinetics_list_is_the_one_of_its_label_and_split(
    tmp_path: Path, there: str, other: str
) -> None:
    for name in (there, other):
        path = tmp_path / name.replace("X", "one_000001_000011")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    rows = "label,youtube_id,time_start,time_end,split\nrun,one,1,11,val\nwalk,two,1,11,val\n"
    (tmp_path / "list.csv").write_text(rows)
    assert Path(convert.listed(tmp_path / "list.csv")[0][0].path).read_text() == there


def test_a_split_without_a_sound_video_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    bad = [convert.Item(str(tmp_path / "bad.mp4"), "a")]
    with pytest.raises(UserError, match=r"no readable video of split train; the first: .*bad.mp4: "):
        convert.convert(tmp_path / "out", {"train": (bad, 1), "validation": (bad, 1)})


def test_broken_videos_are_counted_under_one_reason(tmp_path: Path) -> None:
    options, out = Options(eval_part=0.5), tmp_path / "out"
    videos = custom_sources.clips(tmp_path / "clips", 4)
    for name in ("a", "b", "odd: left out: c"):
        (videos / "left" / f"{name}.mp4").write_bytes(b"no video")
    custom_data.convert([videos], out, options)
    ((reason, finding),) = options.report.left_out.items()
    assert reason.startswith("cannot be decoded: ") and finding == Finding(3, str(videos / "left" / "a.mp4"))
    assert f"{videos}/left/b.mp4: {reason}" in options.report.lines


def test_the_list_of_held_out_videos_has_only_those_of_the_records(tmp_path: Path) -> None:
    for part in ("train", "val"):
        custom_sources.clips(tmp_path / "clips" / part, 2)
    (tmp_path / "clips" / "val" / "left" / "broken.mp4").write_bytes(b"no video")
    custom_data.convert([tmp_path / "clips"], tmp_path / "out", Options())
    held_out = (tmp_path / "out" / folder_conversion.HELD_OUT).read_text().splitlines()
    assert held_out == [f"val/{name}/{name}{i}.mp4" for name in ("left", "right") for i in (0, 1)]


def test_a_group_stays_on_one_side_across_classes(tmp_path: Path) -> None:
    items = [convert.Item(f"{n}.mp4", "ab"[n // 12], f"person {n % 6}") for n in range(24)]
    for seed in range(8):
        parts = custom_data._divided(items, Options(eval_part=0.3, seed=seed))
        sides = [{item.group for item in part} for part in parts]
        assert all(sides) and not sides[0] & sides[1]


def test_copies_of_a_video_stay_on_one_side(tmp_path: Path) -> None:
    items = []
    for n in range(24):
        path = tmp_path / f"{'abcdefghijklmnopqrstuvwxyz'[n]}.mp4"
        path.write_bytes(bytes([n % 6]) * 9)
        items.append(convert.Item(str(path), "x"))
    for seed in range(8):
        parts = custom_data._divided(items, Options(eval_part=0.3, seed=seed))
        sides = [{Path(item.path).read_bytes() for item in part} for part in parts]
        assert all(sides) and not sides[0] & sides[1]


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
