"""Answers without a network, whose quality a run has to beat: what an hour without one would give. TensorFlow-free.

Each function returns (quality, what the answer is), as `folder_conversion.finish` takes a baseline.
"""

import collections
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

COLORS = 4  # Bins of each color in a histogram.
DIRECTIONS = 16  # Bins of an edge's direction in half a turn.
# A logistic regression takes so many pictures to train on, steps, and at most so many products in a step.
_MOST_PICTURES, _STEPS, _MOST_PRODUCTS = 4000, 300, 2e8
_RATE, _DECAY = 1.0, 1e-3
_MOST_PAIRS = 100_000  # Sentence pairs that are searched for the nearest.
# Left and right differ if thumbnails tell this part of the pictures (64 to 97 % of digits and letters, up to 60 % of
# photographs), and so many more than of mirrored ones, in standard errors (3.6 to 40; up to 1.7 of photographs, 4.8 to
# 6.5 of first frames of clips, of which thumbnails tell 54 %). Or if directions do: they tell 100 % of stripes with 7.7
# errors, up to 56 % of photographs with 0.4, 90 % of 40 first frames with 2.7, and 28 % of 300 with 4.4.
_TOLD, _SIDED = 0.62, 3.0
_COMMON = 0.1  # A word in more than this part of the sentences tells none from another.


def histogram(pixels: np.ndarray) -> bytes:
    """Returns the color histogram of a picture uint8 [H, W, 3]: the shares of COLORS^3 bins, in 255ths."""
    rows, columns = (max(1, side // 128) for side in pixels.shape[:2])
    bins = pixels[::rows, ::columns].reshape(-1, 3).astype(np.int64) * COLORS // 256
    counts = np.bincount(bins @ (COLORS**2, COLORS, 1), minlength=COLORS**3)
    return np.round(255 * counts / counts.sum()).astype(np.uint8).tobytes()


def directions(pixels: np.ndarray) -> bytes:
    """Returns the shares of the DIRECTIONS of a picture's edges, weighted by their strength, in 255ths.

    `pixels` is uint8 [H, W, 3]; a mirrored picture has the shares in reverse order.
    """
    rows, columns = (max(1, side // 128) for side in pixels.shape[:2])
    gray = pixels[::rows, ::columns].astype(np.float32).mean(2)
    if min(gray.shape) < 2:
        return bytes(DIRECTIONS)
    down, right = np.gradient(gray)
    bins = (np.arctan2(down, right) % np.pi / np.pi * DIRECTIONS).astype(np.int64) % DIRECTIONS
    strengths = np.bincount(bins.ravel(), np.hypot(right, down).ravel(), DIRECTIONS)
    return np.round(255 * strengths / max(strengths.sum(), 1e-6)).astype(np.uint8).tobytes()


def majority(train: Sequence[str], held_out: Sequence[str]) -> tuple[float, str]:
    """Returns the share of `held_out` in the class that `train` has most often."""
    name = max(sorted(set(train)), key=collections.Counter(train).__getitem__)
    return held_out.count(name) / len(held_out), f"always the most frequent class, {name}"


def classifier(
    train: Sequence[bytes], labels: Sequence[str], held_out: Sequence[bytes], expected: Sequence[str]
) -> tuple[float, str]:
    """Returns the accuracy on `held_out` of a logistic regression, or of the most frequent class if that has more.

    A picture's features are its color histogram and gray thumbnail, uint8 of one length. `labels` and `expected` are
    the classes.
    """
    plain = majority(labels, expected)
    classes = sorted(set(labels))
    order = np.random.default_rng(0).permutation(len(train))[:_MOST_PICTURES]
    if len(order) * len(classes) * len(train[0]) > _MOST_PRODUCTS or not train[0]:
        return plain
    y = np.array([classes.index(labels[i]) for i in order])
    answers = _logistic(_roots([train[i] for i in order]), y, _roots(held_out), len(classes))
    right = np.mean([classes[i] == name for i, name in zip(answers, expected)])
    return max(plain, (float(right), "logistic regression on colors and a thumbnail"))


def sided(thumbnails: Sequence[bytes], edges: Sequence[bytes], labels: Sequence[str]) -> bool:
    """Whether left and right differ, as in text: a mirrored picture is recognized less often than the picture itself.

    The pictures have gray, square `thumbnails`, the `directions` of `edges`, and classes, `labels`.
    """
    side = math.isqrt(len(thumbnails[0]))
    return _sided(
        thumbnails, labels, lambda x: x.reshape(-1, side, side)[:, :, ::-1].reshape(x.shape)
    ) or _sided(edges, labels, lambda x: x[:, ::-1])


def _sided(
    features: Sequence[bytes], labels: Sequence[str], mirror: Callable[[np.ndarray], np.ndarray]
) -> bool:
    """As `sided`: a logistic regression on one half of the pictures answers the other half, and the reverse."""
    order = np.random.default_rng(0).permutation(len(features))[:_MOST_PICTURES]
    classes, size = sorted(set(labels)), len(features[0])
    if len(order) < 2 or not size or len(order) * len(classes) * size > _MOST_PRODUCTS:
        return False
    x = _roots([features[i] for i in order])
    mirrored = mirror(x)
    y, right = np.array([classes.index(labels[i]) for i in order]), []
    for half in (0, 1):
        train, held_out = slice(half, None, 2), slice(1 - half, None, 2)
        answers = _logistic(x[train], y[train], np.vstack([x[held_out], mirrored[held_out]]), len(classes))
        right.append(answers.reshape(2, -1) == y[held_out])
    plain, other = np.hstack(right)
    lead = plain.sum() - other.sum()
    return bool(plain.mean() > _TOLD and lead > _SIDED * math.sqrt(np.count_nonzero(plain != other)))


def _roots(rows: Sequence[bytes]) -> np.ndarray:
    """Returns the roots of rows of bytes, float32 [rows, length], which spread the small shares of a histogram."""
    return np.sqrt(np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1).astype(np.float32))


def _logistic(x: np.ndarray, y: np.ndarray, x_held: np.ndarray, classes: int) -> np.ndarray:
    """Returns the likeliest classes [held] after _STEPS of gradient descent with Nesterov's momentum."""
    mean, deviation = x.mean(0), x.std(0) + 1
    x, x_held = (
        np.pad((part - mean) / deviation, ((0, 0), (0, 1)), constant_values=1) for part in (x, x_held)
    )
    weights = np.zeros([x.shape[1], classes], np.float32)
    velocity = np.zeros_like(weights)
    hot = np.eye(classes, dtype=np.float32)[y]
    rate = _RATE / np.mean(np.sum(x**2, axis=1))
    for _ in range(_STEPS):
        ahead = weights + 0.9 * velocity
        logits = x @ ahead
        logits = np.exp(logits - logits.max(1, keepdims=True))
        slope = x.T @ (logits / logits.sum(1, keepdims=True) - hot) / len(x) + _DECAY * ahead
        velocity = 0.9 * velocity - rate * slope
        weights = weights + velocity
    return (x_held @ weights).argmax(1)


def median_boxes(train: Mapping[str, Any], held_out: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns one median box per class for every picture of `held_out`, in pycocotools' form.

    The median box has the median center, width and height of the class's training boxes, as fractions of the picture.
    Its score is the fraction of the training pictures that have the class. Both contents have COCO's form, positive
    categories and sound boxes.
    """
    sizes = {image["id"]: (image["width"], image["height"]) for image in train["images"]}
    boxes, owners = collections.defaultdict(list), collections.defaultdict(set)
    for item in train["annotations"]:
        if not item["iscrowd"]:
            (x, y, w, h), (width, height) = item["bbox"], sizes[item["image_id"]]
            boxes[item["category_id"]].append(
                ((x + w / 2) / width, (y + h / 2) / height, w / width, h / height)
            )
            owners[item["category_id"]].add(item["image_id"])
    answers = []
    for category, parts in sorted(boxes.items()):
        x, y, w, h = np.median(parts, axis=0).tolist()
        for image in held_out["images"]:
            width, height = image["width"], image["height"]
            box = [(x - w / 2) * width, (y - h / 2) * height, w * width, h * height]
            score = len(owners[category]) / len(sizes)
            answers.append({"image_id": image["id"], "category_id": category, "bbox": box, "score": score})
    return answers


def nearest(
    train: Iterable[tuple[str, str]],
    held_out: Sequence[tuple[str, str]],
    score: Callable[[Sequence[str], Sequence[str]], float],
) -> tuple[float, str]:
    """Returns the BLEU, from 0 to 1, of the nearest training sentence's translation, or of copies if that is more.

    The nearest source has the largest cosine of its words' tf-idf. Pairs are (source, target); `score` maps
    (references, hypotheses) to BLEU from 0 to 100.
    """
    pairs = [pair for pair, _ in zip(train, range(_MOST_PAIRS))]
    sources, references = [source for source, _ in held_out], [target for _, target in held_out]
    texts = [collections.Counter(_words(source)) for source, _ in pairs]
    lists: dict[str, list[int]] = collections.defaultdict(list)
    for number, words in enumerate(texts):
        for word in words:
            lists[word].append(number)
    weight = {word: math.log((1 + len(pairs)) / len(numbers)) for word, numbers in lists.items()}
    norms = [math.sqrt(sum((n * weight[w]) ** 2 for w, n in words.items())) or 1.0 for words in texts]
    lengths, most = np.array(norms), max(10, _COMMON * len(pairs))
    postings = {w: np.array(numbers) for w, numbers in lists.items() if len(numbers) <= most}
    translations = []
    for source in sources:
        sums = np.zeros(len(pairs))
        for word, count in collections.Counter(_words(source)).items():
            if word in postings:
                numbers = postings[word]
                sums[numbers] += count * weight[word] ** 2 * np.array([texts[i][word] for i in numbers])
        translations.append(pairs[int(np.argmax(sums / lengths))][1])
    copied = score(references, sources) / 100, "copying the source"
    return max(
        copied, (score(references, translations) / 100, "the translation of the nearest training sentence")
    )


def _words(text: str) -> list[str]:
    """Returns the words of a sentence; pairs of characters where a script writes no blanks."""
    words = re.findall(r"\w+", text.casefold())
    run = "".join(words)
    return words if len(run) < 15 * len(words) else [a + b for a, b in zip(run, run[1:])] or words
