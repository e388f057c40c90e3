"""Tests the answers without a network against answers found by hand, and by plain loops."""

import collections
import json
import math

import numpy as np
import pytest

from common.data import baselines
from common.detection import coco_eval


def test_colors_tell_classes_that_the_majority_does_not():
    rng = np.random.default_rng(0)
    names = [str(i % 3) for i in range(120)]

    def pictures(shift):
        base = [np.full([9, 7, 3], 40, np.uint8) for _ in names]
        for picture, name in zip(base, names):
            picture[..., (int(name) + shift) % 3] = 220
            picture += rng.integers(0, 30, picture.shape, np.uint8)
        return [baselines.histogram(picture) for picture in base]

    accuracy, what = baselines.classifier(pictures(0), names, pictures(0), names)
    assert accuracy == 1.0 and what.startswith("logistic regression")
    # Colors that mislead: the most frequent class is better, and is the answer.
    assert baselines.classifier(pictures(0), names, pictures(1), names) == baselines.majority(names, names)


@pytest.mark.parametrize(
    "count, rows, expected", [(90, 3, True), (90, 1, False), (2, 3, False), (1, 3, False)]
)
def test_pictures_are_sided_if_mirrored_ones_look_like_others(count, rows, expected):
    """A bright quarter, on the left or on the right, marks a class; or a bright row, which a mirror keeps."""
    rng, names = np.random.default_rng(0), [str(i % 2) for i in range(count)]
    thumbnails = rng.integers(0, 60, [count, 8, 8], np.uint8)
    for one, name in zip(thumbnails, names):
        one[(slice(4), slice(4 * int(name), 4 * int(name) + 4)) if rows > 1 else int(name)] += 150
    edges = [bytes(baselines.DIRECTIONS)] * count
    assert baselines.sided([one.tobytes() for one in thumbnails], edges, names) is expected


@pytest.mark.parametrize(("angles", "expected"), [((45, 135), True), ((0, 90), False)])
def test_stripes_are_sided_if_a_mirror_turns_them(angles, expected):
    rng, (y, x), names, edges = np.random.default_rng(0), np.mgrid[:48, :48], [], []
    for number in range(60):
        angle = np.deg2rad(angles[number % 2])
        waves = np.sin(0.5 * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(0, 6))
        pixels = np.repeat(128 + 60 * waves[..., None] + rng.normal(0, 20, (48, 48, 1)), 3, axis=2)
        edges.append(baselines.directions(pixels.astype(np.uint8)))
        names.append(str(angles[number % 2]))
    assert baselines.sided([bytes(64)] * 60, edges, names) is expected


def test_a_mirrored_picture_has_its_directions_in_reverse_order():
    picture = np.random.default_rng(0).integers(0, 255, [30, 40, 3], np.uint8)
    picture[:, 20:] //= 3
    plain, mirrored = (
        np.frombuffer(baselines.directions(one), np.uint8).astype(int) for one in (picture, picture[:, ::-1])
    )
    assert plain.sum() > 240 and np.abs(plain - mirrored[::-1]).max() <= 2
    assert baselines.directions(np.zeros([1, 5, 3], np.uint8)) == bytes(baselines.DIRECTIONS)


def test_a_histogram_holds_each_pixel_s_bin():
    picture = np.zeros([2, 2, 3], np.uint8)
    picture[0] = (255, 64, 0)
    shares = np.frombuffer(baselines.histogram(picture), np.uint8)
    assert {i: int(n) for i, n in enumerate(shares) if n} == {0: 128, 3 * 16 + 4: 128}


def test_the_median_box_of_a_class_is_found_where_it_always_is(tmp_path):
    def content(first, count, size):
        w, h = size
        images = [{"id": i, "width": w, "height": h} for i in range(first, first + count)]
        box = [w / 4, h / 4, w / 2, h / 2]
        items = [
            {"id": i + 1, "image_id": i, "category_id": 1, "bbox": box, "area": w * h / 4, "iscrowd": 0}
            for i in range(first, first + count)
        ]
        return {"images": images, "annotations": items, "categories": [{"id": 1, "name": "a"}]}

    train, held_out = content(0, 5, (200, 100)), content(7, 3, (100, 200))
    train["annotations"].append({**train["annotations"][0], "bbox": [0, 0, 1, 1], "iscrowd": 1})
    results = baselines.median_boxes(train, held_out)
    assert [(r["image_id"], r["bbox"], r["score"]) for r in results] == [
        (i, [25.0, 50.0, 50.0, 100.0], 1.0) for i in (7, 8, 9)
    ]
    path = tmp_path / "held.json"
    path.write_text(json.dumps(held_out))
    assert coco_eval.average_precision(path, results, "bbox")["AP"] == pytest.approx(1.0)
    assert baselines.median_boxes({**train, "annotations": []}, held_out) == []


def naive(train, source):
    """The pair whose source has the largest cosine of tf-idf, by a loop; words in over a tenth of them are left out."""
    texts = [collections.Counter(a.split()) for a, _ in train]
    count = collections.Counter(word for text in texts for word in text)
    weight = {word: math.log((1 + len(train)) / n) for word, n in count.items()}
    counts = collections.Counter(source.split())

    def cosine(text):
        top = sum(
            counts[w] * n * weight[w] ** 2 for w, n in text.items() if count[w] <= max(10, 0.1 * len(train))
        )
        return top / (math.sqrt(sum((n * weight[w]) ** 2 for w, n in text.items())) or 1.0)

    return max(train, key=lambda pair: cosine(collections.Counter(pair[0].split())))


def test_the_nearest_sentence_is_that_of_a_plain_search():
    rng = np.random.default_rng(1)
    words = [f"w{i}" for i in range(60)]

    def sentence():
        return " ".join(rng.choice(words, rng.integers(3, 9), p=np.arange(60, 0, -1) / 1830))

    train = [(text, f"t{i} {text[::-1]}") for i, text in enumerate(sentence() for _ in range(150))]
    held_out, answers = [(sentence(), "x") for _ in range(20)], []

    def score(references, hypotheses):
        answers.append(list(hypotheses))
        return float(len(answers))

    value, what = baselines.nearest(train, held_out, score)
    assert answers == [[s for s, _ in held_out], [naive(train, s)[1] for s, _ in held_out]]
    assert (value, what) == (0.02, "the translation of the nearest training sentence")
    assert baselines.nearest(train, held_out, lambda r, h: -score(r, h))[1] == "copying the source"
