"""Mutates pictures, videos and annotations, passes each to the reader of `timetotrain data`, and watches what it does.

Each case is read twice. It is watched for an exception that is no line for the user, a line of several lines, and
results that differ. `tests/lab/bench/test_hostile_files.py` tries a few; TTT_HOSTILE_CASES=20000 makes it try as many.
"""

import hashlib
import json
import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.bench.harness import hostile, samples

KINDS = (
    *((("picture", kind)) for kind in samples.PICTURES),
    *((("video", kind)) for kind in samples.CONTAINERS),
    *((("annotations", kind)) for kind in samples.ANNOTATIONS * 3),
)
# Values that annotation programs write, and some that none would.
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 1e9, -1e9, 1e300, 10**400, float("nan"), float("inf"), 0.5, "", "0", "false",
    "p1.jpg", [], {}, [1], [[1, 2]], [[0, 0, 9, 0, 9, 9]], [0, 0, 9, 9], [1e9, 0, 0, 1e9],
    [-5, -5, 500, 500], "é", "\ud800", {"size": [32, 48], "counts": [1536]},
    {"size": [32, 48], "counts": [5]}, {"size": [48, 32], "counts": "0"}, "../p1.jpg", "a\0b",
    "images\\p0.jpg", "9" * 400, [[float("nan")] * 6], [[1e12, 0, 0, 1e12, -1e12, 5]],
)  # fmt: skip


def kind_of(number: int) -> tuple[str, str]:
    """Returns (what, kind) of the case `number`, such as ("picture", "jpeg")."""
    return KINDS[number % len(KINDS)]


def run(number: int, seed: int, place: Path) -> dict[str, Any]:
    """Makes and tries one case in this process, in an empty folder; returns the observations."""
    rng = random.Random(f"{seed} {number}")
    medium, kind = kind_of(number)
    if medium == "annotations":
        change = _damage_annotations(kind, place, rng)
        read: Callable[[], str] = lambda: read_annotations(place, masks=number % 4 < 2)  # noqa: E731
    else:
        suffix = f".{kind}" if medium == "video" else ".picture"
        path = (samples.video if medium == "video" else samples.picture)(kind, place / f"file{suffix}")
        data, times = path.read_bytes(), rng.choice((1, 1, 1, 3))
        for _ in range(times):
            data = (
                _flipped(data, rng)
                if rng.random() < 0.5 and data
                else hostile.mutate_bytes(data or b"x", rng)
            )
        path.write_bytes(data)
        change = f"bytes, {times} times"
        read = lambda: read_file(medium, path, png=number % 2 == 0)  # noqa: E731
    return {"kind": f"{medium}: {kind}", "change": change, **observed(read)}


def observed(read: Callable[[], str]) -> dict[str, Any]:
    """Calls a reader twice; returns its result and what it should not have done."""
    from common.data.pictures import BadPictureError
    from common.data.videos import BadVideoError
    from common.errors import UserError

    results, trace = [], ""
    for _ in range(2):
        try:
            results.append(f"read {read()}")
        except (UserError, BadPictureError, BadVideoError) as error:
            results.append(f"refused {error}")
        except BaseException:
            results.append("traceback")
            trace = traceback.format_exc()
    return {
        "result": results[0][:200],
        "lines": results[0].count("\n") + 1,
        "differs": results[0] != results[1],
        "traceback": trace,
    }


def read_file(what: str, path: Path, png: bool) -> str:
    """Reads a picture or a video as a conversion does; returns a digest of what a record would hold."""
    if what == "video":
        from common.data import videos

        clip = videos.read(path, 24)
        return hashlib.sha256(b"".join(clip.frames) + repr(clip.times).encode()).hexdigest()
    from common.data import pictures

    picture, digest, *_ = pictures.checked(pictures.contents(path), png)
    return hashlib.sha256(picture.encoded + digest.encode()).hexdigest()


def read_annotations(folder: Path, masks: bool) -> str:
    """Reads a folder of annotations as a conversion does; returns a digest of its records and left-out lines."""
    from common.data.folder_conversion import Options
    from common.detection import coco_source, coco_tidy, coco_write
    from common.detection.convert import Pictures

    options, digest = Options(), hashlib.sha256()
    sources = [source for source in coco_source.find(folder, options) if source]
    contents, names, _ = coco_tidy.tidy(sources, masks, options.report)
    for source, content in zip(sources, contents):
        content = json.loads(json.dumps(content))
        coco_write.check(content, "the result", masks and bool(content["annotations"]))
        dropped: list[str] = []
        for record in coco_write.examples(content, Pictures(str(source.folder), True).read, masks, dropped):
            digest.update(record)
        if dropped:
            raise RuntimeError(f"an object that was taken is left out of its record: {dropped}")
    digest.update(json.dumps([names, options.report.as_json(), options.report.lines]).encode())
    return digest.hexdigest()


def _damage_annotations(kind: str, place: Path, rng: random.Random) -> str:
    path = rng.choice(samples.annotations(kind, place))
    data = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.75:
        values, times = json.loads(data), rng.choice((1, 1, 2, 4))
        for _ in range(times):
            values = hostile.mutate_values(values, rng, _VALUES)
        path.write_text(json.dumps(values))
        return f"values, {times} times"
    if rng.random() < 0.3 and path.suffix != ".json":
        words = data.split(b" ") if path.suffix == ".txt" else data.split(b">")
        at = rng.randrange(len(words))
        value = str(rng.choice(_VALUES)).encode(errors="replace")
        words[at] = value + (b"<" + words[at].partition(b"<")[2] if b"<" in words[at] else b"")
        path.write_bytes((b" " if path.suffix == ".txt" else b">").join(words))
        return "a word"
    path.write_bytes(hostile.mutate_bytes(data, rng))
    return "bytes"


def _flipped(data: bytes, rng: random.Random) -> bytes:
    """Flips one bit, more often near the start, where headers are."""
    at = min(int(rng.random() ** 2 * len(data)), len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def broken(case: dict[str, Any]) -> list[str]:
    """Returns what a case did that it must not do."""
    promises = {
        "a traceback": case["traceback"],
        "differs when read twice": case["differs"],
        "several lines": case["lines"] > 1,
    }
    return [name for name, happened in promises.items() if happened]
