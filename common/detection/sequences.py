"""Reads tracked films in MOT's form, a folder of frames with gt/gt.txt, as COCO's JSON."""

import re
from collections.abc import Sequence
from pathlib import Path

from common.data import folder_conversion, pictures, text_files
from common.data.report import Report
from common.detection import label_lines
from common.detection.annotation_formats import Builder, Object, Source
from common.errors import UserError

# Classes 1 to 12 of MOT16 (Milan et al., 2016, arXiv:1603.00831, table 3); the reader ignores the others.
_CLASSES = (
    *("pedestrian", "person on vehicle", "car", "bicycle", "motorbike", "non motorized vehicle"),
    *("static person", *["ignored regions"] * 5),
)
_LABELS = "labels.txt"  # CVAT's list of classes beside gt.txt.


def find(folder: Path, report: Report) -> Source | None:
    """Reads the films of a folder; None if it has none. Raises UserError if no line can be used."""
    files = folder_conversion.files(folder)
    lists = {path.parent.parent: path for path in files if path.parts[-2:] == ("gt", "gt.txt")}
    builder = Builder()
    for film, path in sorted(lists.items()):
        frames = {}
        for frame in files:
            if frame.suffix.lower() in pictures.SUFFIXES and frame.is_relative_to(film):
                frames[int((re.findall(r"\d+", frame.stem) or [-1])[-1])] = frame
        names = path.parent / _LABELS
        classes = text_files.read(names) if names.is_file() else _CLASSES
        rows: dict[int, list[tuple[str, Sequence[str]]]] = {}
        for number, line in enumerate(text_files.read(path), 1):
            words, place = label_lines.words_of(line), f"{path}: line {number}"
            if words and words[0].isdigit() and int(words[0]) in frames:
                rows.setdefault(int(words[0]), []).append((place, words))
            elif words:
                report.leave_out("of a frame that is not there", place)
        for number, frame in sorted(frames.items()):
            builder.image(frame.relative_to(folder).as_posix())
            builder.read(rows.get(number, ()), lambda words, names=classes: _object(words, names), report)
    if lists and not builder.objects:
        fix = "lines of MOTS, with run lengths, are not read; convert them to COCO"
        raise UserError(f"{next(iter(lists.values()))}: no line of it is a box of MOT; {fix}")
    return Source(builder.content(), folder, str(folder), films=True) if lists else None


def refuse_detected(files: Sequence[Path]) -> None:
    """Raises UserError if a detector's boxes, det/det.txt, are among the files; MOT17's test films have no others."""
    for path in files:
        if path.parts[-2:] == ("det", "det.txt"):
            raise UserError(f"{path}: boxes of a detector, which are not labels; add gt/gt.txt")


def _object(words: Sequence[str], classes: Sequence[str]) -> Object:
    """Reads frame, track, left, top, width, height, and perhaps whether it counts, a class and the visible part."""
    left, top, width, height, *more = map(float, words[2:])
    number = int(more[1]) if len(more) > 2 and more[1] > 0 else 1
    if number > len(classes):
        raise ValueError(f"a class outside of the {len(classes)} of the film: {number}")
    return Object(classes[number - 1], [left - 1, top - 1, width, height], difficult=more[:1] == [0])
