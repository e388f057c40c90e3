"""Decodes video files to JPEG frames with FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator, Sequence

import av
import numpy as np
from PIL import Image

from common.data.videos import MOST_FRAMES, MOST_PIXELS, opened


class BadVideoError(Exception):
    """Raised for an unusable video; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class Clip:
    """A decoded video.

    Attributes:
      frames: JPEG files, in presentation order.
      height, width: frame size, in pixels.
      remark: "", or a description of the damage if the video is only partly usable.
    """

    frames: Sequence[bytes]
    height: int
    width: int
    remark: str = ""


def read(path: str | os.PathLike, short_side: int, rate: float = 0.0, quality: int = 92) -> Clip:
    """Reads all frames of a video, scaled down to a short side of at most `short_side` pixels.

    Frames come in presentation order, rotated by the file's rotation flag. If the end of a file is damaged, the
    function keeps the frames before it and adds a remark.

    Args:
      path: any file that FFmpeg reads: mp4, avi, webm, mkv.
      short_side: in pixels; smaller videos keep their size.
      rate: frames per second after resampling, to even out a variable frame rate; 0 keeps the frames as they are.
      quality: quality setting of the JPEG encoder.

    Raises:
      BadVideoError: the file has no video or no frame, or cannot be decoded from its start.
    """
    encoded: list[bytes] = []
    size, remark = (0, 0), ""
    try:
        with opened(path) as container:
            if not container.streams.video:
                raise BadVideoError("holds no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            shown = _evenly(container.decode(stream), rate) if rate else container.decode(stream)
            for frame in shown:
                if frame.width * frame.height > MOST_PIXELS:
                    raise BadVideoError(f"has frames of {frame.width} x {frame.height} pixels")
                picture = _picture(frame, short_side, size)
                size = size if any(size) else picture.size
                encoded.append(_jpeg(picture, quality))
                if len(encoded) > MOST_FRAMES:
                    raise BadVideoError(f"holds more than {MOST_FRAMES} frames")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        if not encoded:
            raise BadVideoError(f"cannot be decoded: {getattr(error, 'strerror', None) or error}") from error
        remark = f"is damaged after {len(encoded)} frames, which are kept"
    if not encoded:
        raise BadVideoError("holds no frame")
    width, height = size
    return Clip(encoded, height, width, remark)


def _evenly(frames: Iterator[av.VideoFrame], rate: float) -> Iterator[av.VideoFrame]:
    """Yields the frame shown at each time 0, 1 / rate, 2 / rate, ... after the first frame."""
    previous, begin, number = None, 0.0, 0
    for frame in frames:
        if frame.time is None:
            continue
        if previous is None:
            begin = frame.time
        # The previous frame stays on screen until this frame's time.
        while previous is not None and begin + number / rate < frame.time - 1e-6:
            yield previous
            number += 1
        previous = frame
    if previous is not None:
        yield previous


def _picture(frame: av.VideoFrame, short_side: int, size: tuple[int, int]) -> Image.Image:
    """Scales and rotates a frame for display; `size` is the first frame's size, or (0, 0) for the first frame."""
    turned = frame.rotation % 180 != 0
    width, height = (frame.height, frame.width) if turned else (frame.width, frame.height)
    if any(size):
        width, height = size
    else:
        scale = min(1.0, short_side / min(width, height))
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
    stored = (height, width) if turned else (width, height)
    pixels = frame.reformat(width=stored[0], height=stored[1], format="rgb24").to_ndarray()
    # FFmpeg counts the display matrix's rotation anticlockwise, as numpy does.
    return Image.fromarray(np.ascontiguousarray(np.rot90(pixels, round(frame.rotation / 90) % 4)))


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=quality)
    return encoded.getvalue()


def write(path: str | os.PathLike, frames: np.ndarray, rate: int = 25, codec: str = "mpeg4") -> None:
    """Encodes uint8 [T, H, W, 3] into a video file; H and W must be even. For generated data and tests."""
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.options = {"threads": "1"}  # Makes the file the same on every machine.
        if codec == "mpeg4":
            stream.options = {
                "threads": "1",
                "qmin": "2",
                "qmax": "2",
            }  # A constant quantiser, close to the best quality.
        for image in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
