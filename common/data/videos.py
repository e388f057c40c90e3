"""Opens untrusted video files: only a video in a single file, never a list of other files or addresses."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

# FFmpeg's names of containers that hold the video itself. FFmpeg also supports playlists ("hls", "concat", "dash"),
# which open other files or network addresses, and a playlist file may have any name.
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
MOST_PIXELS = 1 << 26  # Per frame; 8K video has half as many.
MOST_FRAMES = 100_000  # Per video, an hour at 25 per second; more is not a clip or a damaged header.


def opened(path: str | os.PathLike) -> Any:
    """Opens a video for reading; returns PyAV's container, a context manager.

    Raises:
      av.error.FFmpegError, OSError, ValueError: it is not a file or not a video, or it is a list of others.
    """
    import av

    file = pathlib.Path(path)
    if not file.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(file))
    if not file.is_file():
        raise ValueError(f"{file}: no regular file")
    container = av.open(
        f"file:{file.resolve()}",  # FFmpeg would treat a name such as "concat:a|b" as an address.
        options={"format_whitelist": ",".join(CONTAINERS), "protocol_whitelist": "file"},
    )
    for stream in container.streams.video:
        if stream.width * stream.height > MOST_PIXELS:
            container.close()
            raise ValueError(f"frames of {stream.width} x {stream.height} pixels")
    return container
