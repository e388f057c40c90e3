"""Tests that sources a conversion of videos cannot use end with one line; test_input.py reads what it writes."""

from pathlib import Path

import pytest

from common.data import folder_conversion
from common.data.folder_conversion import Options
from common.data.report import Finding
from common.errors import UserError
from tests import custom_sources
from tsm_kinetics import convert, custom_data


@pytest.mark.parametrize("start", ["", "x", "inf"])
def test_a_time_of_a_kinetics_list_that_is_no_number_is_named(tmp_path: Path, start: str) -> None:
    source = tmp_path / "train.csv"
    source.write_text(
        f"label,youtube_id,time_start,time_end,split\na,one,1,11,train\nb,two,{start},11,train\n"
    )
    with pytest.raises(UserError, match=r"train.csv: line 3: time_start and time_end must be numbers"):
        convert.items(source)


def test_a_split_without_a_sound_video_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.mp4").write_bytes(b"no video")
    bad = [convert.Item(str(tmp_path / "bad.mp4"), "a")]
    with pytest.raises(UserError, match=r"no sound video of split train; the first: .*bad.mp4: "):
        convert.convert(tmp_path / "out", {"train": (bad, 1), "validation": (bad, 1)})


def test_broken_videos_are_counted_under_one_reason(tmp_path: Path) -> None:
    options, out = Options(eval_part=0.5), tmp_path / "out"
    videos = custom_sources.clips(tmp_path / "clips", 4)
    for name in ("a", "b", "odd: left out: c"):
        (videos / "left" / f"{name}.mp4").write_bytes(b"no video")
    custom_data.convert([videos], out, options)
    ((reason, found),) = options.report.left_out.items()
    assert reason.startswith("cannot be decoded: ") and found == Finding(3, str(videos / "left" / "a.mp4"))
    assert f"{videos}/left/b.mp4: {reason}" in options.report.lines


def test_the_list_of_held_out_videos_has_only_those_of_the_records(tmp_path: Path) -> None:
    for part in ("train", "val"):
        custom_sources.clips(tmp_path / "clips" / part, 2)
    (tmp_path / "clips" / "val" / "left" / "broken.mp4").write_bytes(b"no video")
    custom_data.convert([tmp_path / "clips"], tmp_path / "out", Options())
    held = (tmp_path / "out" / folder_conversion.HELD_OUT).read_text().splitlines()
    assert held == [f"val/{name}/{name}{i}.mp4" for name in ("left", "right") for i in (0, 1)]


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
