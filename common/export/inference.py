"""Asks a trained network, an export or a checkpoint, about files: pictures, videos, texts; answers as plain values."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import pathlib
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.config import benchmarks
from common.config.digest import from_dict
from common.errors import UserError
from common.export import trained
from common.export.formats import ABOUT, EXTRA
from common.train.serving import Codec

LEAST_SCORE = 0.3  # Detections below it are not reported.


@dataclasses.dataclass
class Network:
    """A network that answers.

    Attributes:
      kind: see `common.train.serving.Serving`.
      call: takes one array of the first input; returns {name: array}.
      labels: names of its classes.
      codec: of a translation, else None.
      seconds: duration of every call so far, without the first of each shape.
    """

    kind: str
    call: Callable[[Any], Mapping[str, np.ndarray]]
    labels: Sequence[str]
    codec: Codec | None

    def __post_init__(self):
        self.seconds: list[tuple[float, int]] = []
        self._seen: set[tuple[int, ...]] = set()

    def __call__(self, values: np.ndarray) -> dict[str, np.ndarray]:
        """Answers for an array whose first axis counts examples."""
        start = time.perf_counter()
        found = {name: np.asarray(value) for name, value in self.call(values).items()}
        # The first call of a shape also traces or compiles.
        if values.shape in self._seen:
            self.seconds.append((time.perf_counter() - start, len(values)))
        self._seen.add(values.shape)
        return found

    def measured(self) -> str:
        """Returns a line: median latency of a call, and throughput, without the first call of each shape."""
        if not self.seconds:
            return "latency  not measured: the first call of a shape also compiles; give more files"
        times, counts = zip(*self.seconds)
        unit = {"video": "frames", "translation": "sentences", "words": "texts"}.get(self.kind, "pictures")
        median = sorted(times)[len(times) // 2]
        return (
            f"latency  {1000 * median:.1f} ms a call of {max(counts)} {unit} (median of {len(times)} calls); "
            f"throughput {sum(counts) / sum(times):.1f} {unit}/s"
        )


def load(path: str | os.PathLike) -> Network:
    """Loads a SavedModel of `timetotrain export`, or a checkpoint.

    Raises:
      UserError: it is neither, or is damaged.
    """
    path = pathlib.Path(path)
    if not (path / "saved_model.pb").is_file():
        return of(trained.load(path))
    about_path = path / EXTRA / ABOUT
    try:
        about = json.loads(about_path.read_text(encoding="utf-8"))
        module = tf.saved_model.load(os.fspath(path))
        signature = module.signatures["serving_default"]
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"{path}: no SavedModel of `timetotrain export` ({reason}); export it again"
        ) from error
    name = next(iter(signature.structured_input_signature[1]))
    codec = None
    if about["kind"] == "translation":
        config = from_dict(benchmarks.module(about["benchmark"], "presets").Config, about["config"])
        assets = {p.name: p.read_bytes() for p in (path / EXTRA).iterdir() if p.name != ABOUT}
        codec = trained.codec(about["benchmark"], config, assets, path)
    network = Network(
        about["kind"], lambda values: signature(**{name: tf.constant(values)}), about["labels"], codec
    )
    network.module = module  # Its variables live as long as it does.
    return network


def of(found: trained.Trained) -> Network:
    """Returns a network that answers with a checkpoint's weights."""
    serving = found.serving
    function = tf.function(serving.function, input_signature=list(serving.inputs.values()), autograph=False)
    codec = None
    if serving.kind == "translation":
        codec = trained.codec(found.benchmark, found.config, found.assets, found.path)
    return Network(serving.kind, lambda values: function(tf.constant(values)), found.labels, codec)


def ask(network: Network, files: Sequence[str], batch: int = 8, score: float = LEAST_SCORE) -> Iterator[dict]:
    """Yields an answer for each file in order, or for each line of a file of text.

    An answer has "file" and, by the network's kind, "classes" [{name, score}], "objects" [{name, score, box, mask}],
    "times" [{from, to, name, score}] of a video, or "text" and "translation" or "next".

    Args:
      network: from `load` or `of`.
      files: names of files; "-" of a network for texts is standard input.
      batch: examples of a call.
      score: least score of an object.

    Raises:
      UserError: a file is missing, or is not what the network takes.
    """
    if network.kind == "video":
        from common.export import videos

        for name in files:
            yield videos.answer(network, name)
    elif network.kind in ("translation", "words"):
        yield from _texts(network, files, batch)
    else:
        yield from _pictures(network, files, batch, score)


def _pictures(network: Network, files: Sequence[str], batch: int, score: float) -> Iterator[dict]:
    for start in range(0, len(files), batch):
        names = files[start : start + batch]
        encoded = np.array([_read(name) for name in names] + [b""], object)[:-1]
        try:
            found = network(encoded)
        except tf.errors.OpError:
            raise UserError(f"{_first_bad(network, names)}: no JPEG or PNG picture; leave it out") from None
        for i, name in enumerate(names):
            one = {key: value[i] for key, value in found.items()}
            yield {"file": name, **(_classes(one) if network.kind == "classes" else _objects(one, score))}


def _first_bad(network: Network, names: Sequence[str]) -> str:
    for name in names:
        try:
            network(np.array([_read(name), b""], object)[:-1])
        except tf.errors.OpError:
            return name
    return names[0]


def _classes(one: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {
        "classes": [
            {"name": name.decode(), "score": round(float(score), 6)}
            for name, score in zip(one["top_names"], one["top_scores"])
        ]
    }


def _objects(one: Mapping[str, np.ndarray], least: float) -> dict[str, Any]:
    found = []
    for i in np.flatnonzero((one["classes"] > 0) & (one["scores"] >= least)):
        entry = {
            "name": one["names"][i].decode(),
            "score": round(float(one["scores"][i]), 6),
            "box": [round(float(x), 2) for x in one["boxes"][i]],
        }
        if "masks" in one:
            entry["mask"] = one["masks"][i].astype(np.float32)
        found.append(entry)
    return {"objects": found}


def _texts(network: Network, files: Sequence[str], batch: int) -> Iterator[dict]:
    lines = [(name, number, line) for name in files for number, line in _lines(name)]
    for start in range(0, len(lines), batch):
        part = lines[start : start + batch]
        texts = [line for _, _, line in part]
        if network.kind == "words":
            found = network(np.array([text.encode() for text in texts] + [b""], object)[:-1])
            results = [
                {"next": _classes({k: v[i] for k, v in found.items()})["classes"]} for i in range(len(part))
            ]
        else:
            results = [{"translation": text} for text in _translated(network, part)]
        for (name, number, text), result in zip(part, results):
            yield {"file": name, "line": number, "text": text, **result}


def _translated(network: Network, part: Sequence[tuple[str, int, str]]) -> list[str]:
    codec = network.codec
    tokens = np.zeros([len(part), codec.length], np.int32)
    for row, (name, number, text) in zip(tokens, part):
        encoded = codec.encode(text)
        if len(encoded) > codec.length:
            raise UserError(
                f"{name}: line {number} has {len(encoded)} tokens, the network takes {codec.length}; split the sentence"
            )
        row[: len(encoded)] = encoded
    return [codec.decode(row.tolist()) for row in network(tokens)["tokens"]]


def _lines(name: str) -> list[tuple[int, str]]:
    import sys

    try:
        data = sys.stdin.buffer.read() if name == "-" else _read(name)
        text = (gzip.decompress(data) if name.endswith(".gz") else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: byte {error.start} is not UTF-8; save the text as UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{name}: not a whole gzip file ({error}); get a sound copy") from error
    return [(i, line.strip()) for i, line in enumerate(text.split("\n"), 1) if line.strip()]


def _read(name: str) -> bytes:
    try:
        return pathlib.Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"{name}: cannot read: {error.strerror}; name a file") from error
