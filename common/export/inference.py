"""Runs a trained network (an export or a checkpoint) on pictures, videos or texts; answers are plain values."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from common.data import folder_conversion, pictures, text_files
from common.errors import UserError, one_line
from common.export import saved_graph, trained
from common.export.continuation import GREEDY, Sampling, continued
from common.export.formats import ABOUT, EXTRA, LENGTH, WITH_CODEC
from common.export.trained import STRANGER, Trust
from common.text import sentences
from common.train.serving import Codec, Reading
from common.untrusted import parsed, read_plain

LEAST_SCORE = 0.3  # Minimum score of reported detections.
KINDS = ("classes", "objects", "video", "translation", "words", "continuation")
_TEXTS = ("translation", "words", "continuation")
_UNITS = {"video": "frames", "translation": "sentences", "words": "texts", "continuation": "tokens"}
# Maximum bytes of a file that travels with a SavedModel; WMT's vocabularies have under a million.
_MOST_ASSET = 1 << 28
_MOST_SIDE = 1 << 13  # Pixels of a video's short side.
_MOST_NAME = 200  # Maximum characters of a class name in an answer.
_EXPORT_AGAIN = "it is not a SavedModel of `timetotrain export`; export it again"


@dataclasses.dataclass
class Network:
    """A network that is ready for inference.

    Attributes:
      kind: see `common.train.serving.Serving`.
      call: takes an array for the first input; returns {name: array}.
      labels: names of its classes.
      codec: encodes and decodes text for a text network, else None.
      path: path of the model, for errors.
      reading: how pictures and videos were read for the records.
      seconds: (duration, examples) of every call so far except the first of each shape.
    """

    kind: str
    call: Callable[[Any], Mapping[str, np.ndarray]]
    labels: Sequence[str]
    codec: Codec | None
    path: str = "the model"
    reading: Reading = Reading()

    def __post_init__(self):
        self.seconds: list[tuple[float, int]] = []
        self._shapes: set[tuple[int, ...]] = set()

    def __call__(
        self, values: np.ndarray, passing: tuple[type[Exception], ...] = ()
    ) -> dict[str, np.ndarray]:
        """Runs the network on an array whose first axis is the examples.

        Raises UserError if the network raised an exception; those in `passing` go through unchanged.
        """
        start = time.perf_counter()
        with one_line(f"{self.path}: cannot answer", "get a good copy, or give fewer files", passing):
            outputs = {name: np.asarray(value) for name, value in self.call(values).items()}
        # The first call of a shape also traces or compiles.
        if values.shape in self._shapes:
            self.seconds.append((time.perf_counter() - start, len(values)))
        self._shapes.add(values.shape)
        return outputs

    def classes(self, encoded: Sequence[bytes]) -> list[list[dict[str, Any]]]:
        """Returns the best classes, [{name, score}], of each file or text; of a video's frames, of all together."""
        outputs = self(_array(encoded))
        return [
            [{"name": _name(name), "score": round(float(score), 6)} for name, score in zip(*row)]
            for row in zip(outputs["top_names"], outputs["top_scores"])
        ]

    def measured(self) -> str:
        """Returns a line with a call's median latency and the throughput, without the first call of each shape.

        The line is empty if there was no other call.
        """
        if not self.seconds:
            return ""
        times, counts = zip(*self.seconds)
        unit = _UNITS.get(self.kind, "pictures")
        median = sorted(times)[len(times) // 2]
        return (
            f"latency  {1000 * median:.1f} ms a call of {max(counts)} {unit} (median of {len(times)} calls); "
            f"throughput {sum(counts) / sum(times):.1f} {unit}/s"
        )


def load(path: str | os.PathLike, trust: Trust = STRANGER) -> Network:
    """Loads a SavedModel from `timetotrain export`, or a checkpoint; either may be untrusted.

    Raises UserError if it is neither, it is damaged, or it does something that `trust` does not allow.
    """
    path = pathlib.Path(path)
    if not (path / "saved_model.pb").is_file():
        return from_checkpoint(trained.load(path, trust=trust))
    with one_line(f"{path}", _EXPORT_AGAIN):
        about = _about(path)
        saved_graph.check(path)
        module = tf.saved_model.load(os.fspath(path))
        signature = module.signatures["serving_default"]
        name = next(iter(signature.structured_input_signature[1]))
    codec = None
    if about["kind"] in WITH_CODEC:
        _, config = trained.described(about["benchmark"], about["config"], path, trust)
        codec = trained.codec(about["benchmark"], config, _assets(path), path)
        # An export of an earlier version takes the evaluation's length.
        length = about.get(LENGTH) or (config.decode.source_length if about["kind"] == "translation" else 0)
        if not isinstance(length, int) or not 1 <= length <= codec.length:
            raise UserError(f"{path}: {EXTRA}/{ABOUT} has {LENGTH}={str(length)[:40]}; {_EXPORT_AGAIN}")
        codec = dataclasses.replace(codec, length=length)
    call, reading = lambda values: signature(**{name: tf.constant(values)}), _reading(about, path)
    network = Network(about["kind"], call, about["labels"], codec, os.fspath(path), reading)
    network.module = module  # Its variables live as long as it does.
    return network


def _about(path: pathlib.Path) -> dict[str, Any]:
    """Reads and checks a SavedModel's description of itself."""
    about = parsed(read_plain(path / EXTRA / ABOUT, _MOST_ASSET))
    kinds = {"benchmark": str, "kind": str, "labels": list, "config": dict}
    for name, kind in kinds.items():
        if not isinstance(about, dict) or not isinstance(about.get(name), kind):
            raise UserError(f"{path}: {EXTRA}/{ABOUT} has no {name}; {_EXPORT_AGAIN}")
    trained.check_benchmark(about["benchmark"], path)
    if about["kind"] not in KINDS:
        raise UserError(f"{path}: kind {about['kind'][:80]!r} is unknown; known: {', '.join(KINDS)}")
    return about


def _reading(about: Mapping[str, Any], path: pathlib.Path) -> Reading:
    """Returns how a SavedModel's pictures and videos are read; the usual way if an older version exported it."""
    described = about.get("reading", {})
    try:
        reading = Reading(**described)
        sound = type(reading.png) is bool and type(reading.short_side) is int
    except TypeError:
        sound = False
    if not sound or not 1 <= reading.short_side <= _MOST_SIDE:
        raise UserError(f"{path}: {EXTRA}/{ABOUT}: reading is {str(described)[:80]}; {_EXPORT_AGAIN}")
    return reading


def _assets(path: pathlib.Path) -> dict[str, bytes]:
    try:
        others = [p for p in (path / EXTRA).iterdir() if p.name != ABOUT]
        return {p.name: read_plain(p, _MOST_ASSET) for p in others}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: an asset cannot be read ({error}); {_EXPORT_AGAIN}") from error


def from_checkpoint(checkpoint: trained.Trained) -> Network:
    """Returns a network with a checkpoint's weights."""
    serving = checkpoint.serving
    function = tf.function(serving.function, input_signature=list(serving.inputs.values()), autograph=False)
    codec = None
    if serving.kind in WITH_CODEC:
        codec = trained.codec(checkpoint.benchmark, checkpoint.config, checkpoint.assets, checkpoint.path)
    call, path = lambda values: function(tf.constant(values)), os.fspath(checkpoint.path)
    return Network(serving.kind, call, checkpoint.labels, codec, path, serving.reading)


def ask(
    network: Network,
    files: Sequence[str],
    batch: int = 8,
    score: float = LEAST_SCORE,
    sampling: Sampling = GREEDY,
) -> Iterator[dict]:
    """Yields an answer for each file in order, or for each line of a text file.

    An answer has "file". Depending on the network's kind, it also has "classes" [{name, score}], "objects" [{name,
    score, box, mask}], "times" [{from, to, name, score}] for a video, or "text" and "translation", "next" or
    "continuation". A picture, a video or a line of text that cannot be answered has "error", a line, instead.

    Args:
      network: from `load` or `of`.
      files: file names; for a text network, "-" is standard input.
      batch: examples per call.
      score: minimum score of an object.
      sampling: how a text goes on.

    Raises UserError if the network cannot answer, or a text is missing or is not text.
    """
    with one_line(f"{network.path}: its answer cannot be read", "get a good copy of the model"):
        if network.kind == "video":
            yield from _videos(network, files)
        elif network.kind in _TEXTS:
            yield from _texts(network, files, batch, sampling)
        else:
            yield from _pictures(network, files, batch, score)


def files_in(network: Network, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (the files to answer, files in folders that are none of the network's kind).

    A folder among `names` stands for the visible pictures or videos in it, at any depth.
    """
    if network.kind in _TEXTS:
        return list(names), []
    paths: list[str] = []
    others: list[str] = []
    for name in names:
        if not os.path.isdir(name):
            paths.append(name)
            continue
        inside = folder_conversion.files(pathlib.Path(name))
        clips = []
        if network.kind == "video":
            from common.data import videos

            clips = videos.frame_folders(inside, pathlib.Path(name))
        paths += map(os.fspath, clips)
        for path in inside:
            if path.parent not in clips:
                (paths if _fits(network, path) else others).append(os.fspath(path))
    return paths, others


def _fits(network: Network, path: pathlib.Path) -> bool:
    if network.kind == "video":
        from common.data import videos

        return path.suffix.lower() in videos.SUFFIXES or videos.is_video(path)
    return path.suffix.lower() in pictures.SUFFIXES or pictures.is_picture(path)


def _videos(network: Network, files: Sequence[str]) -> Iterator[dict]:
    try:
        from common.data.videos import BadVideoError
        from common.export import videos
    except ImportError as error:
        raise UserError(f"{files[0]}: reading videos needs PyAV; pip install av") from error
    for name in files:
        try:
            yield videos.answer(network, name)
        except BadVideoError as error:
            why = "a picture, and this network takes videos" if pictures.is_picture(name) else error
            yield {"file": name, "error": f"{name}: {why}; leave it out"}


def _pictures(network: Network, files: Sequence[str], batch: int, score: float) -> Iterator[dict]:
    for start in range(0, len(files), batch):
        names = files[start : start + batch]
        encoded, faults = [], {}
        for place, name in enumerate(names):
            try:
                encoded.append(pictures.checked(pictures.contents(name), network.reading.png).encoded)
            except pictures.BadPictureError as error:
                faults[place] = f"{name}: no picture: {error}; leave it out"
        if network.kind == "classes":
            rows = ({"classes": classes} for classes in (network.classes(encoded) if encoded else ()))
        else:
            outputs = network(_array(encoded)) if encoded else {}
            rows = (_objects({k: v[i] for k, v in outputs.items()}, score) for i in range(len(encoded)))
        for place, name in enumerate(names):
            yield {"file": name, **({"error": faults[place]} if place in faults else next(rows))}


def _array(encoded: Sequence[bytes]) -> np.ndarray:
    return np.array([*encoded, b""], object)[:-1]


def _name(name: bytes) -> str:
    return name.decode(errors="replace")[:_MOST_NAME]


def _objects(one: Mapping[str, np.ndarray], least: float) -> dict[str, Any]:
    objects = []
    for i in np.flatnonzero((one["classes"] > 0) & (one["scores"] >= least)):
        entry = {
            "name": _name(one["names"][i]),
            "score": round(float(one["scores"][i]), 6),
            "box": [round(float(x), 2) for x in one["boxes"][i]],
        }
        if "masks" in one:
            entry["mask"] = one["masks"][i].astype(np.float32)
        objects.append(entry)
    return {"objects": objects}


def _texts(network: Network, files: Sequence[str], batch: int, sampling: Sampling) -> Iterator[dict]:
    """Yields an answer for each line that is not empty; a line that cannot be answered has "error"."""
    lines = [{"file": name, **answer} for name in files for answer in _lines(name, network.kind)]
    for start in range(0, len(lines), batch):
        part = lines[start : start + batch]
        sound = [line for line in part if "error" not in line]
        if network.kind == "continuation":
            results = continued(network, network.codec, [line["text"] for line in sound], sampling)
        else:
            results = (_translated if network.codec else _followed)(network, sound)
        for line, result in zip(sound, results, strict=True):
            line.update(result)
        yield from part


def _followed(network: Network, part: Sequence[dict]) -> list[dict]:
    """Returns the words that may follow each text."""
    texts = [line["text"].encode() for line in part]
    return [{"next": words} for words in network.classes(texts)] if texts else []


def _translated(network: Network, part: Sequence[dict]) -> list[dict]:
    """Returns the translation of each text; an error for a text that is too long."""
    codec = network.codec
    encoded = [codec.encode(line["text"]) for line in part]
    fits = [i for i, tokens in enumerate(encoded) if len(tokens) <= codec.length]
    rows = np.zeros([len(fits), codec.length], np.int32)
    for row, i in zip(rows, fits):
        row[: len(encoded[i])] = encoded[i]
    texts = [codec.decode(row.tolist()) for row in network(rows)["tokens"]] if fits else []
    translations = {i: {"translation": text} for i, text in zip(fits, texts)}
    long = "{file}: line {line}: {} tokens, the network takes {}; split the sentence"
    return [
        translations.get(i) or {"error": long.format(len(tokens), codec.length, **line)}
        for i, (tokens, line) in enumerate(zip(encoded, part))
    ]


def _lines(name: str, kind: str) -> Iterator[dict]:
    """Yields the line number, and the text or an error, of each line that is not empty; a file without any has one."""
    empty = True
    try:
        if kind == "translation" and (form := sentences.markup(pathlib.Path(name))):
            raise UserError(f"{name}: {form}, whose markup is not read; write its sentences, one a line")
        for line in text_files.lines(name):
            empty = empty and line.text is not None and not line.text.strip()
            if line.text is None or "\0" in line.text:
                why = line.fault or text_files.NUL
                yield {"line": line.number, "error": f"{name}: line {line.number}: {why}"}
            elif line.text.strip():
                yield {"line": line.number, "text": line.text.strip()}
        if empty:
            raise UserError(f"{name}: no text in it; name another file")
    except UserError as error:
        yield {"error": str(error)}
