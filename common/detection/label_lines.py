"""Reads the lines of label files, one file a picture: of YOLO, KITTI and DOTA.

A line's meaning is decided for all files of a folder at once: one line alone can be a polygon or a box with a track's
number. TensorFlow-free.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path

from common.data.report import Report
from common.detection.annotation_formats import Object, outlined
from common.errors import UserError

SLACK = 0.01  # Rounding makes some fractions exceed 1.
POSES = "YOLO's poses are not read; export boxes without key points"
_LEAST_POSES = 4  # Lines; one line alone may be a polygon of this form. This project's choice.
LOW_SCORE = 0.5  # Predictions of a lower score are suspicious as labels. This project's choice.
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.I)


def _kitti(words: Sequence[str]) -> Object:
    """KITTI's object development kit (readme.txt): type, truncated, occluded, alpha, left, top, right, bottom, ..."""
    left, top, right, bottom = map(float, words[4:8])
    return Object(words[0], [left, top, right - left, bottom - top])


def _dota(words: Sequence[str]) -> Object:
    """DOTA's task 1 (captain-whu.github.io/DOTA): eight coordinates of corners, the class and the difficulty."""
    return outlined(words[8], list(map(float, words[:8])), words[9:] == ["1"])


def _is(pattern: str) -> Callable[[Sequence[str]], bool]:
    """Returns a test of words: numbers (n) and names (a) in this order; "n8 a n?" is 8 numbers, a name, maybe one."""
    form = re.compile(re.sub(r"([na])(\d+)", r"\1{\2}", pattern).replace(" ", ""))
    return lambda words: bool(form.fullmatch("".join("n" if NUMBER.fullmatch(w) else "a" for w in words)))


def _are_pixels(words: Sequence[str]) -> bool:
    return all(re.fullmatch(r"-?\d+", word) for word in words)


# Formats whose lines name the class, in pixels: {program: (whether words are such a line, their object)}.
NAMED = {"KITTI": (_is("a n14 n?"), _kitti), "DOTA": (_is("n8 a n?"), _dota)}
_IS_NAMED_BOX, _CONVERT = _is("a+ n4"), "convert them to COCO or YOLO"
_OF_COMMAS = {"VisDrone", "ICDAR (words of a text)"}
# Formats that are not read: {program: (whether words are such a line, what helps)}. OIDv4 is its ToolKit's.
_FOREIGN = {
    "YOLO with names of classes": (
        lambda words: _IS_NAMED_BOX(words) and all(0 <= float(word) <= 1 for word in words[-4:]),
        "write the class's number, and list the names in classes.txt",
    ),
    "KITTI's tracking": (_is("n2 a n14 n?"), _CONVERT),
    "OpenImages (OIDv4)": (_IS_NAMED_BOX, _CONVERT),
    "ICDAR (words of a text)": (
        lambda words: _are_pixels(words[:8]) and len(words) > 8,
        "convert its boxes to COCO",
    ),
    "VisDrone": (lambda words: len(words) == 8 and _are_pixels(words), _CONVERT),
}
_HEADERS = ("imagesource:", "gsd:")  # DOTA's first lines.
_COMMAS = re.compile(r"(?=.*,)\d+(\s+-?(\d*,)?\d+)+")


def words_of(line: str) -> list[str]:
    """Returns the words of a line, which blanks or commas divide; [] for an empty line or a header.

    A comma inside of numbers that blanks divide is a decimal point.
    """
    if _COMMAS.fullmatch(line.strip()):
        line = line.replace(",", ".")
    words = line.strip().strip(",").split("," if line.count(",") > 2 else None)
    return [] if line.lower().startswith(_HEADERS) else [word.strip() for word in words]


def program_of(lines: Iterable[str], folder: Path) -> str:
    """Returns the program of NAMED whose lines these are; "" for YOLO's.

    Raises UserError if they are lines of _FOREIGN. Those of _OF_COMMAS have commas, DOTA's and YOLO's none.
    """
    filled = [line for line in lines if words_of(line)]
    for program, (fits, _) in {**_FOREIGN, **NAMED}.items():
        commas = program not in _OF_COMMAS or all(line.count(",") > 6 for line in filled)
        if filled and commas and all(fits(words_of(line)) for line in filled):
            if program in _FOREIGN:
                raise UserError(f"{folder}: labels of {program}, which are not read; {_FOREIGN[program][1]}")
            return program
    return ""


class Layout:
    """What the numbers behind the class mean in all of a folder's YOLO lines.

    Attributes:
      track: a last whole number is a track's, no coordinate and no score.
    """

    def __init__(self, rows: Sequence[tuple[str, Sequence[str]]], folder: str, report: Report):
        """Takes (place for messages, words) of each line; raises UserError for poses and other layouts of boxes."""
        widths = {len(words) for _, words in rows}
        six, seven = ([words[-1] for _, words in rows if len(words) == width] for width in (6, 7))
        # A fifth number of 0 or 1 alone is a score; a sixth beside five others is a corner unless every line has a box.
        # Then lines of seven words alone decide: a tracker writes no number behind a box that it does not follow.
        self.track = _are_tracks(six + seven) or widths <= {5, 6, 7} and _are_whole(seven)
        tracked = {6, *([5] if _are_tracks(six) else [])} if self.track else ()
        self._check_boxes(rows, folder)
        if len(rows) >= _LEAST_POSES and all(_looks_like_pose(words) for _, words in rows):
            raise UserError(f"{folder}: every line is a box with points inside; {POSES}")
        for place, words in rows:
            count = len(words) - 1
            if count in tracked:
                report.change("a track's number behind a box, not read", place)
            score = words[5] if count == 5 and count not in tracked or count == 6 and self.track else ""
            if score:
                report.change("a fifth number of a box, taken for a prediction's score", place)
                suspect_score(report, score, place)

    def _check_boxes(self, rows: Sequence[tuple[str, Sequence[str]]], folder: str) -> None:
        boxes = []
        for _, words in rows:
            try:
                boxes.append([float(word) for word in words[1:6]] if self._is_box(len(words) - 1) else [])
            except ValueError:
                continue
        in_range = [box for box in boxes if box and min(box[:4]) >= 0 and max(box[:4]) <= 1 + SLACK]
        firsts, sizes = [box[:4] for box in in_range], [(1, 1)] * len(in_range)
        other = other_layout(firsts, sizes, "center")
        if other:
            raise UserError(f"{folder}: {other}; convert them to the center, width and height")
        wrong = _outside(firsts, sizes, "center") >= len(in_range) * _MOST_OUTSIDE
        scored = len(in_range) >= _LEAST_BOXES and all(len(box) == 5 for box in in_range)
        if wrong and scored and not _outside([box[1:] for box in in_range], sizes, "center"):
            raise UserError(f"{folder}: the number before each box seems to be its score; write it last")

    def _is_box(self, count: int) -> bool:
        return count in (4, 5) or count == 6 and self.track

    def read(self, words: Sequence[str], names: Sequence[str]) -> Object:
        """Returns the object of a line, as fractions of the picture.

        Raises ValueError if the line is neither a box nor a polygon, or its class has no name.
        """
        try:
            number, *values = (float(word) for word in words)
        except ValueError:
            raise ValueError(f"no numbers: {' '.join(words)[:60]}") from None
        if not all(map(math.isfinite, [number, *values])) or number != int(number):
            raise ValueError(f"no finite numbers after a whole one: {' '.join(words)[:60]}")
        if not 0 <= number < len(names):
            raise ValueError(f"a class outside of the {len(names)} names: {int(number)}")
        if not names[int(number)]:
            raise ValueError(f"a class whose line in the list of classes is empty: {int(number)}")
        is_box = self._is_box(len(values))
        values = values[:4] if is_box else values
        if not all(-SLACK <= value <= 1 + SLACK for value in values):
            raise ValueError(f"coordinates outside of 0 to 1: {' '.join(words)[:60]}")
        name = names[int(number)]
        if is_box and len(values) == 4:
            x, y, width, height = values
            return Object(name, [x - width / 2, y - height / 2, width, height])
        if len(values) >= 6 and len(values) % 2 == 0:
            return outlined(name, values)
        raise ValueError(f"neither a box nor a polygon: {len(values)} numbers after the class")


def _are_whole(words: Sequence[str]) -> bool:
    return bool(words) and all(re.fullmatch(r"\d+", word) for word in words)


def _are_tracks(words: Sequence[str]) -> bool:
    return _are_whole(words) and any(int(word) > 1 for word in words)


def suspect_score(report: Report, score: object, place: str) -> None:
    """Notes an object with a low score: a prediction that nobody corrected."""
    try:
        low = 0 <= float(str(score)) < LOW_SCORE
    except ValueError:
        return
    if low:
        report.suspect(f"a score below {LOW_SCORE:g}, as of an uncertain prediction, taken as a label", place)


def _looks_like_pose(words: Sequence[str]) -> bool:
    """Whether a line's first four numbers are a box and all further points, x y or x y v, lie inside of it."""
    try:
        x, y, width, height, *points = map(float, words[1:])
    except ValueError:
        return False
    for step in (2, 3):
        if len(points) >= step and len(points) % step == 0:
            across, down = points[::step], points[1::step]
            inside = all(abs(p - x) <= width / 2 + SLACK for p in across if p)
            if inside and all(abs(p - y) <= height / 2 + SLACK for p in down if p):
                return True
    return False


# Boxes count as of another layout if there are this many, and this part of them leaves the picture when read as the
# format has them, while as the other layout none does. Both are this project's choice.
_LEAST_BOXES, _MOST_OUTSIDE = 8, 0.25
# {layout: (how its four numbers are called, the box x, y, width, height that they mean)}.
_LAYOUTS: dict[str, tuple[str, Callable[..., tuple[float, ...]]]] = {
    "corner": ("x, y, width, height", lambda a, b, c, d: (a, b, c, d)),
    "corners": ("two corners x1, y1, x2, y2", lambda a, b, c, d: (a, b, c - a, d - b)),
    "center": ("center x, y, width, height", lambda a, b, c, d: (a - c / 2, b - d / 2, c, d)),
}


def other_layout(
    boxes: Sequence[Sequence[float]], sizes: Sequence[tuple[float, float]], expected: str
) -> str:
    """Returns how every box fits its picture while many do not as `expected`, of _LAYOUTS; "" if that is not so.

    A box has four numbers, its picture the size (width, height).
    """
    wrong = _outside(boxes, sizes, expected)
    if len(boxes) < _LEAST_BOXES or wrong < len(boxes) * _MOST_OUTSIDE:
        return ""
    others = (one for one in ("corners", "corner", "center") if one != expected)
    other = next((one for one in others if not _outside(boxes, sizes, one)), "")
    if not other:
        return ""
    return (
        f"every bbox fits its picture as {_LAYOUTS[other][0]}, but {wrong} of {len(boxes)} do not as "
        f"{_LAYOUTS[expected][0]}"
    )


def _outside(boxes: Sequence[Sequence[float]], sizes: Sequence[tuple[float, float]], layout: str) -> int:
    return sum(not fits(_LAYOUTS[layout][1](*box), size) for box, size in zip(boxes, sizes))


def are_shifted(used: Set[float], classes: Set[float], steps: Iterable[int] = (1, -1)) -> bool:
    """Whether the numbers of classes are counted from another number than the list of classes: all fit one beside.

    Fewer than half of the classes tell nothing: one number may be wrong.
    """
    if used <= classes or 2 * len(used) < len(classes):
        return False
    return any({one + step for one in used} <= classes for step in steps)


def fits(box: Sequence[float], size: tuple[float, float]) -> bool:
    """Returns whether a box, x, y, width, height, lies within a size, (width, height); rounding may exceed it."""
    margin = 1 if min(size) > 1 else SLACK
    x, y, width, height = box
    inside = (
        x >= -margin and y >= -margin and x + width <= size[0] + margin and y + height <= size[1] + margin
    )
    return width > 0 and height > 0 and inside
