"""Video files to JPEG frames, decoded with FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator, Sequence

import av
import numpy as np
from PIL import Image

MAX_FRAMES = 100_000  # Of one video: an hour at 25 per second. More is no clip, or a damaged header.


class BadVideoError(Exception):
    """A video that cannot be used; the message says why."""


@dataclasses.dataclass(frozen=True)
class Clip:
    """A decoded video.

    Attributes:
      frames: JPEG files, in the order in which they are shown.
      height, width: of the frames, in pixels.
      remark: "", or what is wrong with it although it can be used.
    """

    frames: Sequence[bytes]
    height: int
    width: int
    remark: str = ""


def read(path: str | os.PathLike, short_side: int, rate: float = 0.0, quality: int = 92) -> Clip:
    """All frames of a video, scaled down to a short side of at most `short_side` pixels.

    Frames come in the order of presentation, turned as the file's rotation flag says. Where the end of a file is
    damaged, what comes before it is kept, with a remark.

    Args:
      path: anything that FFmpeg reads: mp4, avi, webm, mkv.
      short_side: in pixels; smaller videos keep their size.
      rate: frames per second; each is then the one shown at its time, which evens out a variable frame rate. 0 takes
        the frames as they are.
      quality: of the JPEG encoder.

    Raises:
      BadVideoError: no video, no frame, or undecodable from its start.
    """
    encoded: list[bytes] = []
    size, remark = (0, 0), ""
    try:
        with av.open(os.fspath(path)) as container:
            if not container.streams.video:
                raise BadVideoError("holds no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            shown = _evenly(container.decode(stream), rate) if rate else container.decode(stream)
            for frame in shown:
                picture = _picture(frame, short_side, size)
                size = size if any(size) else picture.size
                encoded.append(_jpeg(picture, quality))
                if len(encoded) > MAX_FRAMES:
                    raise BadVideoError(f"holds more than {MAX_FRAMES} frames")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if not encoded:
            raise BadVideoError(f"cannot be decoded: {getattr(error, 'strerror', None) or error}") from error
        remark = f"is damaged after {len(encoded)} frames, which are kept"
    if not encoded:
        raise BadVideoError("holds no frame")
    width, height = size
    return Clip(encoded, height, width, remark)


def _evenly(frames: Iterator[av.VideoFrame], rate: float) -> Iterator[av.VideoFrame]:
    """The frame that is shown at each of the times 0, 1 / rate, 2 / rate, ... after the first."""
    previous, begin, number = None, 0.0, 0
    for frame in frames:
        if frame.time is None:
            continue
        if previous is None:
            begin = frame.time
        # The previous frame is shown until this one.
        while previous is not None and begin + number / rate < frame.time - 1e-6:
            yield previous
            number += 1
        previous = frame
    if previous is not None:
        yield previous


def _picture(frame: av.VideoFrame, short_side: int, size: tuple[int, int]) -> Image.Image:
    """The frame as shown, scaled; `size` is that of the first frame, which later ones take on, or (0, 0)."""
    turned = frame.rotation % 180 != 0
    width, height = (frame.height, frame.width) if turned else (frame.width, frame.height)
    if any(size):
        width, height = size
    else:
        scale = min(1.0, short_side / min(width, height))
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
    stored = (height, width) if turned else (width, height)
    pixels = frame.reformat(width=stored[0], height=stored[1], format="rgb24").to_ndarray()
    # FFmpeg counts the turn of the display matrix anticlockwise, as numpy does.
    return Image.fromarray(np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4)))


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


def write(path: str | os.PathLike, frames: np.ndarray, rate: int = 25, codec: str = "mpeg4") -> None:
    """Encodes uint8 [T, H, W, 3] into a video file; H and W even. For generated data and tests."""
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"threads": "1"}  # So that the file is the same everywhere.
        if codec == "mpeg4":
            stream.options = {
                "threads": "1",
                "qmin": "2",
                "qmax": "2",
            }  # A constant quantiser, near the best.
        for image in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
