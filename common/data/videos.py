"""Reads video files, the same way for conversions and for predictions; FFmpeg's libraries (PyAV) decode.

A file may be a stranger's: only a video in a single file is opened, never a list of other files or addresses.
docs/your-own-data.md has the table of what this reader promises.
"""

import collections
import dataclasses
import errno
import io
import os
import pathlib
import re
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.sidedata.sidedata import Type
from av.stream import Disposition
from PIL import Image

from common.data import pictures

# FFmpeg's names of containers that hold the video itself. FFmpeg also supports playlists ("hls", "concat", "dash"),
# which open other files or network addresses, and a playlist file may have any name.
CONTAINERS = (
    *("mov", "mp4", "m4a", "3gp", "3g2", "mj2", "matroska", "webm", "avi", "mpegts", "mpeg"),
    *("mpegvideo", "m4v", "asf", "flv", "ogg", "gif", "h264", "hevc", "av1", "ivf", "obu"),
)
# A file with such a suffix should be a video; any other file is one if its content is.
SUFFIXES = {
    *(".mp4", ".avi", ".webm", ".mkv", ".mov", ".m4v", ".mpg", ".mpeg", ".m2v", ".wmv", ".asf", ".flv"),
    *(".f4v", ".m2ts", ".mts", ".3gp", ".3g2", ".ogv", ".vob", ".divx"),
}
_FRAMES = pictures.SUFFIXES - {".gif"}  # Suffixes of a clip's frames.
# Folders of other pictures.
_NO_FILM = {
    "flow",
    "flow_x",
    "flow_y",
    "optical_flow",
    "depth",
    "mask",
    "masks",
    "thumbs",
    "thumbnails",
    "previews",
}
_NO_FILM |= {"preview", "keyframes", "screenshots", "snapshots", "stills", "covers", "posters"}
# Suffixes of files that lie beside videos; FFmpeg would take some of them for a video of one frame.
_OTHERS = {
    *(".txt", ".csv", ".tsv", ".json", ".xml", ".md", ".html", ".pdf", ".py", ".zip", ".gz", ".srt"),
    *(".vtt", ".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".npy", ".npz", ".wav", ".mp3"),
    *(".m4a", ".aac"),
}
MOST_PIXELS = 1 << 26  # Per frame; 8K video has half as many.
MOST_FRAMES = 100_000  # Per video, an hour at 25 per second; more is not a clip or a damaged header.
MOST_FRAME_BYTES = 1 << 31  # Of a video's JPEG frames, which must fit in memory and in one record.
SHORT_SIDE = 256  # The usual short side of stored frames, in pixels.
QUALITY = 92  # Of the JPEG encoder.
_LEAST_ASPECT = 0.2  # Width of a pixel over its height; films have 0.5 to 2.
_RATE = 25  # Frames per second of a folder of frames, which says none; as FFmpeg's image2 assumes.
_WHOLE = 0.9  # Part of its stated duration that a whole video has at least; sound may outlast the pictures.

TURNED, SHRUNK = "video turned or mirrored as its display matrix says", "video scaled down"
COVER = "a picture without a number among numbered frames, such as a cover, not read"
FLOW = "frames of optical flow beside the others, not read"
STRETCHED = "video of pixels that are not square, scaled to the shape that players show"


class BadVideoError(Exception):
    """Raised for an unusable video; the message gives the reason."""


@dataclasses.dataclass(frozen=True)
class Clip:
    """A decoded video.

    Attributes:
      frames: JPEG files, in presentation order.
      height, width: frame size, in pixels.
      remark: "", or a description of the damage if the video is only partly usable.
      times: each frame's start in seconds after the first's, and the video's end.
      changes: what reading changed, of TURNED, SHRUNK, STRETCHED, COVER, FLOW.
    """

    frames: Sequence[bytes]
    height: int
    width: int
    remark: str = ""
    times: Sequence[float] = ()
    changes: Sequence[str] = ()


def opened(path: str | os.PathLike) -> Any:
    """Opens a video for reading; returns PyAV's container, a context manager.

    Raises av.error.FFmpegError, OSError, ValueError if it is not a file or not a video, or it is a list of others.
    """
    file = pathlib.Path(path)
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
    if not file.is_file():
        raise ValueError(f"{file}: not a regular file")
    container = av.open(
        f"file:{file.resolve()}",  # FFmpeg would treat a name such as "concat:a|b" as an address.
        # Not `options`: PyAV 16 then frees memory it never allocated, and the process dies, if a stream appears only
        # behind a file's header, as in MPEG and FLV files.
        container_options={"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"},
    )
    for stream in container.streams.video:
        if stream.codec_context is None:
            container.close()
            raise ValueError("a video of an unknown codec")
        if stream.width * stream.height > MOST_PIXELS:
            container.close()
            raise ValueError(f"frames of {stream.width} x {stream.height} pixels")
    return container


def film(container: Any) -> Any:
    """Returns the video stream that a player shows, None if there is none: not a cover, and of the most pixels.

    FFmpeg chooses so by default (ffmpeg.org/ffmpeg.html, "Automatic stream selection").
    """
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    return max(streams, key=lambda stream: stream.width * stream.height, default=None)


def is_video(path: str | os.PathLike) -> bool:
    """Whether a file without a video's suffix is one: it opens as one of CONTAINERS and has a frame."""
    if pathlib.Path(path).suffix.lower() in _OTHERS:
        return False
    try:
        with opened(path) as container:
            stream = film(container)
            return stream is not None and next(container.decode(stream), None) is not None
    except (av.error.FFmpegError, OSError, ValueError):
        return False


def read(path: str | os.PathLike, short_side: int = SHORT_SIDE) -> Clip:
    """Reads all frames of a video, scaled down to a short side of at most `short_side` pixels.

    Frames come in presentation order, turned and mirrored by the file's display matrix. If the end of a file is
    damaged, the function keeps the frames before it and adds a remark; likewise if the decoder patches frames. Raises
    BadVideoError if the file has no video or no frame, or cannot be decoded from its start. Any file counts that FFmpeg
    reads: mp4, avi, webm, mkv; and a folder of frames, pictures of one size.
    """
    if os.path.isdir(path):
        return _of_pictures(pathlib.Path(path), short_side)
    frames = _Frames(short_side, 0.0)
    remark, duration = "", 0.0
    try:
        with opened(path) as container:
            stream = film(container)
            if stream is None:
                raise BadVideoError("holds no video stream")
            # What several threads make of a damaged file depends on chance; encoding the JPEGs takes longer anyway.
            stream.thread_type = "NONE"
            stream.codec_context.thread_count = 1
            usual = stream.average_rate or stream.guessed_rate
            frames.span, frames.aspect = float(1 / Fraction(usual)) if usual else 1 / 25, _aspect(stream)
            for frame in container.decode(stream):
                frames.add(frame)
            duration = _seconds(container, stream)
    except (av.error.FFmpegError, OSError, ValueError, MemoryError) as error:
        if not frames.encoded:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise BadVideoError(f"cannot be decoded: {reason}") from error
        remark = f"is damaged after {len(frames.encoded)} frames, which are kept"
    if not frames.encoded:
        raise BadVideoError("holds no frame")
    if frames.patched and not remark:
        remark = "has damaged frames, which the decoder patched"
    if not remark and frames.seconds < _WHOLE * duration - frames.span:
        remark = f"ends after {frames.seconds:.1f} of {duration:.1f} seconds"
    return frames.clip(remark)


def frame_folders(files: Sequence[pathlib.Path], root: pathlib.Path | None = None) -> list[pathlib.Path]:
    """Returns the folders of several frames among files.

    Not of thumbnails or frames of videos and GIFs among them; of optical flow and the like only as the user's `root`.
    """
    films = [path for path in files if path.suffix.lower() in {".gif", *SUFFIXES}]
    frames = [path for path in files if path.suffix.lower() in _FRAMES]
    stems = {path.stem for path in films}
    others = {path.parent for path in (*films, *(path for path in frames if path.stem in stems))}
    several = [one for one, count in collections.Counter(p.parent for p in frames).items() if count > 1]
    several = [place for place in several if place not in others and place.name not in stems]
    return [place for place in several if place == root or place.name.lower() not in _NO_FILM]


def _of_pictures(folder: pathlib.Path, short_side: int) -> Clip:
    """Reads a folder of frames in the order of the numbers in their names; JPEG files stay as they are if they fit.

    Beside frames with numbers, others such as a cover do not count; nor do those of optical flow beside others.
    """
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in _FRAMES)
    numbered = [path for path in paths if re.search(r"\d", path.stem)]
    films = [path for path in numbered if not path.stem.lower().startswith("flow_")]
    changes = [COVER] * (0 < len(numbered) < len(paths)) + [FLOW] * (0 < len(films) < len(numbered))
    numbered = films or numbered
    paths = numbered or paths
    names = sorted({re.split(r"\d", path.stem)[0].casefold() for path in numbered})
    if len(names) > 1:
        several = ", ".join(f"{name}*" for name in names[:4])
        raise BadVideoError(f"has frames of several names, {several}; keep those of one film")
    paths.sort(
        key=lambda path: [int(part) if part.isdigit() else 0 for part in re.split(r"(\d+)", path.stem)]
    )
    frames, size, scale = [], (0, 0), 1.0
    for path in paths:
        try:
            picture = pictures.read(pictures.contents(path))
        except pictures.BadPictureError as error:
            raise BadVideoError(f"has a frame {path.name} that is not a whole picture ({error})") from error
        size = size if any(size) else (picture.width, picture.height)
        if size != (picture.width, picture.height):
            raise BadVideoError(f"has frames of several sizes, such as {path.name}")
        frames.append(picture.encoded)
        scale = min(1.0, short_side / min(size))
        width, height = (max(1, round(side * scale)) for side in size)
        if scale < 1:
            with Image.open(io.BytesIO(picture.encoded)) as image:
                frames[-1] = _jpeg(image.convert("RGB").resize((width, height)))
    if not frames:
        raise BadVideoError("holds no frame")
    times = [n / _RATE for n in range(len(frames) + 1)]
    return Clip(frames, height, width, times=times, changes=changes + [SHRUNK] * (scale < 1))


class _Frames:
    """Collects frames as JPEG files, all of the first one's size.

    `span` is the usual time of one in seconds, `aspect` the width of a pixel over its height.
    """

    def __init__(self, short_side: int, span: float):
        self.span, self._short_side = span, short_side
        self.encoded: list[bytes] = []
        self.aspect = 1.0
        self.patched = self._turned = self._shrunk = False
        self._times: list[float] = []
        self._last_seconds = 0.0  # Seconds that the last frame is shown, if the file says.
        self._size, self._total = (0, 0), 0

    def add(self, frame: av.VideoFrame) -> None:
        """Adds a frame; one without a time is a span after the frame before.

        Raises BadVideoError if the frame is too large, or the frames are too many.
        """
        if frame.width * frame.height > MOST_PIXELS:
            raise BadVideoError(f"has frames of {frame.width} x {frame.height} pixels")
        picture = _picture(frame, self._short_side, self._size, self.aspect)
        self._size = self._size if any(self._size) else picture.size
        self._turned = self._turned or _matrix(frame) != (1, 0, 0, 1)
        self._shrunk = self._shrunk or min(picture.size) < min(frame.width, frame.height)
        self.patched = self.patched or frame.is_corrupt
        self.encoded.append(_jpeg(picture))
        self._times.append(len(self._times) * self.span if frame.time is None else float(frame.time))
        self._last_seconds = float((frame.duration or 0) * (frame.time_base or 0))
        self._total += len(self.encoded[-1])
        if len(self.encoded) > MOST_FRAMES or self._total > MOST_FRAME_BYTES:
            raise BadVideoError(f"holds more than {MOST_FRAMES} frames or {MOST_FRAME_BYTES} bytes")

    def clip(self, remark: str) -> Clip:
        """Returns the clip of all frames."""
        first, last = self._times[0], self._times[-1]
        times = [*(time - first for time in self._times), last - first + self.span]
        marks = {TURNED: self._turned, SHRUNK: self._shrunk, STRETCHED: self.aspect != 1}
        changes = [change for change, is_made in marks.items() if is_made]
        return Clip(self.encoded, self._size[1], self._size[0], remark, times, changes)

    @property
    def seconds(self) -> float:
        """The time from the first frame to the end of the last one, which may be shown for long."""
        return max(self._times) - min(self._times) + max(self.span, self._last_seconds)


def _seconds(container: Any, stream: Any) -> float:
    """Returns the duration that the file states for the video, in seconds; 0 if it states none."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    sound = len(container.streams) > len(container.streams.video)
    return 0.0 if sound or not container.duration else container.duration / av.time_base


def _picture(
    frame: av.VideoFrame, short_side: int, size: tuple[int, int], aspect: float = 1.0
) -> Image.Image:
    """Scales a frame, and turns and mirrors it as the video says; `size`: the first frame's, (0, 0) for itself.

    `aspect` is the width of a pixel over its height.
    """
    a, b, c, d = _matrix(frame)
    swapped = a == 0
    across = max(1, round(frame.width * aspect))
    width, height = (frame.height, across) if swapped else (across, frame.height)
    if any(size):
        width, height = size
    else:
        scale = min(1.0, short_side / min(width, height))
        width, height = max(1, round(width * scale)), max(1, round(height * scale))
    stored = (height, width) if swapped else (width, height)
    pixels = frame.reformat(width=stored[0], height=stored[1], format="rgb24").to_ndarray()
    if swapped:
        pixels = pixels.transpose(1, 0, 2)
    if a + c < 0:
        pixels = pixels[:, ::-1]
    if b + d < 0:
        pixels = pixels[::-1]
    return Image.fromarray(np.ascontiguousarray(pixels))


def _aspect(stream: Any) -> float:
    """Returns the width of a pixel over its height; 1 where the file says nothing or something absurd."""
    aspect = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
    return float(aspect) if aspect and _LEAST_ASPECT <= aspect <= 1 / _LEAST_ASPECT else 1.0


def _matrix(frame: av.VideoFrame) -> tuple[int, int, int, int]:
    """Returns (a, b, c, d) of -1, 0 and 1: a stored pixel (x, y) is shown at (a x + c y, b x + d y).

    FFmpeg's display matrix holds them as 16.16 fixed-point numbers; a turn by another angle becomes the nearest one.
    """
    data = frame.side_data.get(Type.DISPLAYMATRIX)
    if data is None or len(bytes(data)) < 36:
        return 1, 0, 0, 1
    a, b, _, c, d, *_ = struct.unpack("=9i", bytes(data)[:36])
    if not any((a, b, c, d)):
        return 1, 0, 0, 1
    signs = [(value > 0) - (value < 0) for value in (a, b, c, d)]
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return signs[0] or 1, 0, 0, signs[3] or 1
    return 0, signs[1] or 1, signs[2] or 1, 0


def _jpeg(picture: Image.Image) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


def write(path: str | os.PathLike, frames: np.ndarray, rate: int = 25, codec: str = "mpeg4") -> None:
    """Encodes uint8 [T, H, W, 3] into a video file; H and W must be even. For generated data and tests."""
    with av.open(os.fspath(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        # One thread makes the file the same on every machine; a constant quantizer of 2 is close to the best quality.
        stream.options = {"threads": "1", **({"qmin": "2", "qmax": "2"} if codec == "mpeg4" else {})}
        for image in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
