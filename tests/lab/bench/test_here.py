"""Tests lab/bench/here.py: its sets, its verdicts, and the rows of runs that are still to do."""

import json
from collections import Counter

import pytest

from common.data import folder_conversion, videos
from lab.bench import here
from lab.bench.harness import own_sets
from timetotrain.run.outcome import Ending


def test_every_benchmark_has_four_sets_real_and_generated():
    counts = Counter(case.benchmark for case in here.SETS.values())
    assert set(counts.values()) == {4} and len(counts) == 6
    assert {case.benchmark for case in here.SETS.values() if case.real} == set(counts)


@pytest.mark.parametrize(
    "evaluations, least, found",
    [
        ((0.2, 0.5), 0.25, "better"),
        ((0.2, 0.2501), 0.25, "no better"),
        ((0.9, 0.3), 0.25, "fell back"),
    ],
)
def test_a_verdict_is_the_one_that_the_run_gives(evaluations, least, found):
    assert here.verdict("resnet", Ending(evaluations, 1.0, False, "no target"), least) == found


def test_runs_that_are_still_to_do_have_an_estimate_and_the_part_of_a_run(tmp_path):
    done = {"set": "ssd/nuclei", "part": 1.0, "run": True, "minutes": 7.5}
    other = {"set": "ssd/nuclei", "part": 9.0, "run": True, "minutes": 1.0}
    here.put({here.identity("ssd/nuclei", row["part"]): row for row in (other, done)}, tmp_path / "here.json")
    rows = json.loads((tmp_path / "here.json").read_text())["rows"]
    assert rows[:2] == [done, other] and len(rows) == 1 + len(here.SETS) * len(here.PARTS)
    found = {(row["set"], row["part"]): row["minutes"] for row in rows if not row["run"]}
    assert found["ssd/nuclei", 1 / 3] == found["ssd/nuclei", 3.0] == 7.5
    assert found["ssd/coco", 1.0] == here.SETS["ssd/coco"].minutes


def test_generated_sets_have_the_classes_and_sizes_asked_for(tmp_path):
    (folder,) = own_sets.photographs(tmp_path / "photographs", 3, 2)
    assert [len(folder_conversion.files(place)) for place in folder_conversion.folders(folder)] == [2, 2, 2]
    (folder,) = own_sets.objects(tmp_path / "objects", 12, 8)
    content = json.loads((folder / "labels.json").read_text())
    assert len(content["images"]) == 8 and len(content["categories"]) == 12
    for item in content["annotations"]:
        x, y, width, height = item["bbox"]
        assert min(x, y) >= 0 and min(width, height) > 4 and max(x + width, y + height) <= 96
    (folder,) = own_sets.clips(tmp_path / "clips", 2, 1)
    assert {len(videos.read(path).frames) for path in folder_conversion.files(folder)} == {16}
    lines = [path.read_text().splitlines() for path in own_sets.sentences(tmp_path / "text", 20, 30)]
    assert [len(part) for part in lines] == [30, 30]
    assert all(len(a.split()) == len(b.split()) and a != b for a, b in zip(*lines))
