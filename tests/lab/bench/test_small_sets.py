"""Tests the small sets and the peers beside them: the files that are made, and what the peers answer."""

import numpy as np

from common.data.folder_conversion import Options
from common.detection import coco_source, coco_tidy
from lab.bench import small_sets


def test_every_benchmark_of_own_files_has_sets():
    assert len(small_sets.SETS) == 24
    names = [one[0] for one in small_sets.SETS.values()]
    assert {"resnet", "ssd", "maskrcnn", "tsm_kinetics", "transformer", "gnmt"} == set(names)


def test_generated_figures_are_annotated_pictures_of_two_splits(tmp_path):
    small_sets._figures(6, 3, tmp_path)
    sources = coco_source.find(tmp_path, options := Options())
    contents, names, _ = coco_tidy.tidy(sources, True, options.report)
    assert [len(content["images"]) for content in contents] == [6, 3] and len(names) == 4


def test_neighbors_are_those_of_a_plain_search():
    rng = np.random.default_rng(0)
    x, held, y = rng.random((40, 4, 4, 3)), rng.random((7, 4, 4, 3)), rng.integers(0, 3, 40)
    expected = []
    for one in held:
        near = np.argsort([((one - other) ** 2).sum() for other in x])[: small_sets._NEIGHBORS]
        expected.append(np.bincount(y[near], minlength=3).argmax())
    assert small_sets._neighbors(x, y, held, 3).tolist() == expected


def test_a_peer_tells_stripes_better_than_chance(tmp_path):
    small_sets._stripes(48, 24, tmp_path)
    found = small_sets.peer(tmp_path, seconds=3)
    assert found["value"] > 0.4 and found["what"]
