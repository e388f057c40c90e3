"""Contenders of frames.py that decode frames: ours, and bare loops over the same files; run them on one core.

Arguments: contender, folder of `draw`. A step is the frames of a batch of training clips (`BATCH` x 8), or one video:

    train_input          ours: JPEG frames from the shards, cropped, scaled to 224 pixels, flipped, batched
    libjpeg_turbo        cv2.imdecode of the same number of whole frames in memory; nothing else
    libjpeg_turbo_scaled the same, plus crop and scaling to 224 pixels
    convert              ours: tsm_kinetics.convert from a video file to scaled JPEG frames
    ffmpeg_jpeg          a PyAV loop that decodes, converts to RGB and compresses
    ffmpeg               a PyAV loop that decodes and converts to RGB; nothing else
"""

import dataclasses
import io
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import av
import cv2
import numpy as np
from PIL import Image

from common.data import videos
from common.distributed.replicas.base import Shard
from tsm_kinetics import convert, sampling, shards
from tsm_kinetics import input as pipeline
from tsm_kinetics.config import Config, Data

BATCH, FRAMES, SIZE = 8, 8, 224
QUALITY = convert.AS_THE_PAPER.quality
Run = Callable[[int], None]  # Runs N steps.


@dataclasses.dataclass(frozen=True)
class Videos:
    """What `draw` draws: videos with the size of Kinetics' frames at a short side of 256."""

    count: int = 8
    frames: int = 96
    height: int = 256
    width: int = 340


def draw(folder: Path, size: Videos) -> None:
    """Draws H.264 files, and shards of them: a view that moves over a picture with the spectrum of photographs."""
    (folder / "videos" / "a").mkdir(parents=True)
    for number in range(size.count):
        rng = np.random.default_rng(number)
        picture = _picture(rng, size.height + 128, size.width + 128)
        at = np.linspace(rng.integers(0, 128, 2), rng.integers(0, 128, 2), size.frames).astype(int)
        frames = np.stack([picture[y : y + size.height, x : x + size.width] for y, x in at])
        codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
        videos.write(folder / "videos" / "a" / f"{number}.mp4", frames, codec=codec)
    items = convert.items(folder / "videos")
    convert.convert(folder / "shards", {"train": (items, 1), "validation": (items[:1], 1)})


def _picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Returns uint8 [H, W, 3] whose amplitudes fall as 1 / frequency.

    Photographs have this spectrum: Field, "Relations between the statistics of natural images", 1987.
    """
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.maximum(np.hypot(rows, columns), 1 / max(height, width))
    planes = []
    for _ in range(3):
        noise = np.fft.rfft2(rng.standard_normal([height, width])) / frequency
        plane = np.fft.irfft2(noise, [height, width])
        planes.append(plane / plane.std())
    colours = np.stack([planes[0] + 0.3 * plane for plane in planes], -1)  # Mostly gray, as photographs are.
    return (128 + 45 * colours).clip(0, 255).astype(np.uint8)


def train_input(folder: Path) -> Run:
    """Ours. Each round starts a new stream, so that nothing is decoded before the clock starts."""
    index = shards.Index(folder / "shards", "train")
    config = Config(
        num_train_examples=len(index),
        num_eval_examples=1,
        image_size=SIZE,
        num_frames=FRAMES,
        global_batch_size=BATCH,
        data=Data(private_threads=1),
    )
    batches = pipeline.train_input(config, index, Shard(), BATCH, 0)

    def run(steps: int) -> None:
        for _ in itertools.islice(iter(batches), steps):
            pass

    return run


def libjpeg_turbo(folder: Path, scaled: bool = False) -> Run:
    """Decodes frame after frame with OpenCV, which has the same library that TensorFlow decodes with."""
    cv2.setNumThreads(1)
    index, data = shards.Index(folder / "shards", "train"), Data()
    encoded = [
        (np.frombuffer(frame, np.uint8), index.size[number])
        for number in range(len(index))
        for frame in index.read(number, np.arange(index.count[number]))
    ]
    places = itertools.cycle(np.random.default_rng(0).permutation(len(encoded)).tolist())
    rng = sampling.generator(0, 0, 0)

    def run(steps: int) -> None:
        for place in itertools.islice(places, steps * BATCH * FRAMES):
            frame, size = encoded[place]
            pixels = cv2.imdecode(frame, cv2.IMREAD_COLOR)
            if scaled:
                top, left, height, width = sampling.train_window(*map(int, size), SIZE, data, rng)
                window = pixels[top : top + height, left : left + width]
                cv2.resize(window, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)

    return run


def _files(folder: Path) -> Iterator[Path]:
    return itertools.cycle(sorted((folder / "videos" / "a").glob("*.mp4")))


def converter(folder: Path) -> Run:
    """Ours."""
    files = _files(folder)

    def run(steps: int) -> None:
        for path in itertools.islice(files, steps):
            videos.read(path, convert.AS_THE_PAPER.short_side, quality=QUALITY)

    return run


def ffmpeg(folder: Path, compress: bool = False) -> Run:
    """The loop that a PyAV user would write."""
    files = _files(folder)

    def run(steps: int) -> None:
        for path in itertools.islice(files, steps):
            with av.open(str(path)) as container:
                for frame in container.decode(video=0):
                    pixels = frame.to_ndarray(format="rgb24")
                    if compress:
                        Image.fromarray(pixels).save(io.BytesIO(), "JPEG", quality=QUALITY)

    return run


CONTENDERS: dict[str, Callable[[Path], Run]] = {
    "train_input": train_input,
    "libjpeg_turbo": libjpeg_turbo,
    "libjpeg_turbo_scaled": lambda folder: libjpeg_turbo(folder, scaled=True),
    "convert": converter,
    "ffmpeg_jpeg": lambda folder: ffmpeg(folder, compress=True),
    "ffmpeg": ffmpeg,
}


def _version(name: str) -> str:
    if name.startswith("libjpeg"):
        lines = cv2.getBuildInformation().splitlines()
        jpeg = next((line.split(":", 1)[1].strip() for line in lines if "JPEG:" in line), "")
        return f"OpenCV {cv2.__version__}, {jpeg}"
    return f"PyAV {av.__version__}, libavcodec {'.'.join(map(str, av.library_versions['libavcodec']))}"


def make(name: str, folder: str) -> tuple[Run, dict[str, object]]:
    """Returns (function that runs N steps, facts about the contender)."""
    return CONTENDERS[name](Path(folder)), {"version": _version(name)}
