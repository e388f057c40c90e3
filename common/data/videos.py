"""Opens video files that may come from strangers: a video in one file, and no list of other files or addresses."""

from __future__ import annotations

import os
import pathlib
from typing import Any

# FFmpeg's names of the containers that hold a video themselves. It also knows playlists ("hls", "concat", "dash"): they
# open what they name, on the disk or the network, and their files may be called anything.
CONTAINERS = (
    *(
        "mov",
        "mp4",
        "m4a",
        "3gp",
        "3g2",
        "mj2",
        "matroska",
        "webm",
        "avi",
        "mpegts",
        "mpeg",
        "mpegvideo",
        "m4v",
    ),
    *("asf", "flv", "ogg", "gif", "h264", "hevc", "av1", "ivf", "obu"),
)
MOST_PIXELS = 1 << 26  # Of a frame: 8K video has half as many.
MOST_FRAMES = 100_000  # Of a video, an hour at 25 per second; more is no clip, or a damaged header.


def opened(path: str | os.PathLike) -> Any:
    """Opens a video for reading; returns PyAV's container, a context manager.

    Raises:
      av.error.FFmpegError, OSError, ValueError: it is no file, no video, or a list of others.
    """
    import av

    file = pathlib.Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no regular file")
    container = av.open(
        f"file:{file.resolve()}",  # A name such as "concat:a|b" would be an address.
        options={"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"},
    )
    for stream in container.streams.video:
        if stream.width * stream.height > MOST_PIXELS:
            container.close()
            raise ValueError(f"frames of {stream.width} x {stream.height} pixels")
    return container
