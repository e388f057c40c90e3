"""Tests the decoding of real files, and errors that name bad files."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from common.data import videos
from tests import custom_sources


def ramp(frames: int, height: int = 64, width: int = 96) -> np.ndarray:
    """Frames whose gray value gives their number, brighter on the left."""
    values = 40 + 8 * np.arange(frames)[:, None, None, None] + np.linspace(60, 0, width)[:, None]
    return np.broadcast_to(values, [frames, height, width, 3]).astype(np.uint8)


def decoded(clip: videos.Clip) -> np.ndarray:
    return np.stack([np.asarray(Image.open(io.BytesIO(frame))) for frame in clip.frames]).astype(int)


@pytest.mark.parametrize(
    ("name", "codec"), [("a.mp4", "mpeg4"), ("a.mp4", "libx264"), ("a.avi", "mpeg4"), ("a.webm", "libvpx")]
)
def test_formats_give_every_frame_in_order(tmp_path: Path, name: str, codec: str) -> None:
    videos.write(tmp_path / name, ramp(12), codec=codec)
    clip = videos.read(tmp_path / name, short_side=64)
    assert (len(clip.frames), clip.height, clip.width, clip.remark) == (12, 64, 96, "")
    np.testing.assert_allclose(decoded(clip), ramp(12).astype(int), atol=8)


def test_the_short_side_shrinks_and_never_grows(tmp_path: Path) -> None:
    videos.write(tmp_path / "a.mp4", ramp(3))
    small, same = (videos.read(tmp_path / "a.mp4", side) for side in (32, 1000))
    assert [(c.height, c.width) for c in (small, same)] == [(32, 48), (64, 96)]
    assert decoded(small).shape == (3, 32, 48, 3)


@pytest.mark.parametrize(
    "matrix, change",
    [
        ((1, 0, 0, 1), lambda p: p),
        ((-1, 0, 0, 1), lambda p: p[:, ::-1]),
        ((1, 0, 0, -1), lambda p: p[::-1]),
        ((-1, 0, 0, -1), lambda p: p[::-1, ::-1]),
        ((0, 1, -1, 0), lambda p: np.rot90(p, -1)),  # A phone that was held upright.
        ((0, -1, 1, 0), np.rot90),
        ((0, 1, 1, 0), lambda p: p.transpose(1, 0, 2)),
        ((0, -1, -1, 0), lambda p: np.rot90(p, 2).transpose(1, 0, 2)),
    ],
)
def test_a_video_is_turned_and_mirrored_as_its_display_matrix_says(tmp_path, matrix, change) -> None:
    """The matrix of phones and of cameras that face their owner; a mirrored video was upside down."""
    across, down = np.meshgrid(np.linspace(40, 200, 96), np.linspace(0, 50, 64))
    picture = np.stack([across + down] * 3, -1).astype(np.uint8)
    videos.write(tmp_path / "a.mp4", np.stack([picture] * 3))
    path = custom_sources.with_matrix(tmp_path / "a.mp4", tmp_path / "b.mp4", *matrix)
    clip = videos.read(path, 64)
    expected = change(picture)
    assert (clip.height, clip.width) == expected.shape[:2]
    assert (videos.TURNED in clip.changes) == (matrix != (1, 0, 0, 1))
    np.testing.assert_allclose(decoded(clip)[0], expected, atol=8)


def test_a_broken_tail_keeps_what_comes_before(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    videos.write(tmp_path / "a.avi", rng.integers(0, 256, [20, 64, 96, 3], np.uint8))
    whole = (tmp_path / "a.avi").read_bytes()
    (tmp_path / "cut.avi").write_bytes(whole[: len(whole) // 2])
    assert 0 < len(videos.read(tmp_path / "cut.avi", 64).frames) < 20


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "cannot be decoded"), (b"no video" * 99, "cannot be decoded"), (None, "No such")],
)
def test_what_is_no_video_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(videos.BadVideoError, match=message):
        videos.read(path, 64)


def test_sound_without_pictures_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros([1, 1024], np.float32), format="fltp", layout="mono")
        frame.sample_rate = 44100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    with pytest.raises(videos.BadVideoError, match="no video stream"):
        videos.read(path, 64)


def test_a_last_frame_that_is_shown_for_long_is_no_missing_end(tmp_path: Path) -> None:
    path = tmp_path / "still.mp4"
    videos.write(tmp_path / "short.mp4", ramp(10), rate=5)
    with av.open(str(tmp_path / "short.mp4")) as source, av.open(str(path), "w") as container:
        packets = [packet for packet in source.demux(video=0) if packet.dts is not None]
        stream = container.add_stream_from_template(source.streams.video[0])
        packets[-1].duration = round(8 / packets[-1].time_base)
        for packet in packets:
            packet.stream = stream
            container.mux(packet)
    assert not videos.read(path).remark
