"""Notes beside generated data: made once, anew after an interruption, and never in another benchmark's folder."""

from __future__ import annotations

import json

import pytest

import gnmt.tiny
import maskrcnn.tiny
import ssd.tiny
import transformer.tiny
from common import generated
from common.detection import drawing
from common.errors import UserError

PICTURES = drawing.Pictures(train_images=2, eval_images=2, train_files=1, eval_files=1)
PAIR = {"train_pairs": 60, "eval_pairs": 3, "shards": 1}
MAKERS = {
    "ssd": (lambda folder: ssd.tiny.generate(folder, PICTURES), "train-00000-of-00001.tfrecord"),
    "maskrcnn": (lambda folder: maskrcnn.tiny.generate(folder, PICTURES), "train-00000-of-00001.tfrecord"),
    "gnmt": (lambda folder: gnmt.tiny.generate(folder, gnmt.tiny.Tiny(**PAIR, merges=200)), None),
    "transformer": (
        lambda folder: transformer.tiny.generate(folder, transformer.tiny.Tiny(**PAIR, vocabulary_size=250)),
        None,
    ),
}


def state(folder):
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}


@pytest.mark.parametrize("benchmark", MAKERS)
def test_data_are_made_once_anew_after_an_interruption_and_kept_from_others(tmp_path, benchmark):
    generate = MAKERS[benchmark][0]
    generate(tmp_path)
    first, note = state(tmp_path), tmp_path / "tiny.json"
    generate(tmp_path)
    assert state(tmp_path) == first
    for interrupted in ("unfinished", generated.unfinished(benchmark), '{"sett'):
        note.write_text(interrupted)
        generate(tmp_path)
        again = state(tmp_path)
        assert {n: c for n, (_, c) in again.items()} == {n: c for n, (_, c) in first.items()}
        assert any(again[n][0] != first[n][0] for n in first if n != note.name), "made anew"
    before = state(tmp_path)
    for other in MAKERS.keys() - {benchmark}:
        with pytest.raises(UserError, match=f"holds the generated data of {benchmark} .* another DATA_DIR"):
            MAKERS[other][0](tmp_path)
    assert state(tmp_path) == before


def test_a_note_without_a_name_holds_for_the_same_data_only(tmp_path):
    """As earlier versions wrote it."""
    generate, shard = MAKERS["ssd"]
    generate(tmp_path)
    note = tmp_path / "tiny.json"
    settings = json.loads(note.read_text())["settings"]
    note.write_text(json.dumps(settings))
    before = state(tmp_path)
    generate(tmp_path)
    note.write_text(json.dumps({**settings, "seed": 3}))
    with pytest.raises(UserError, match="without a benchmark's name"):
        generate(tmp_path)
    assert state(tmp_path)[shard] == before[shard]


@pytest.mark.parametrize("benchmark", ["ssd", "gnmt", "transformer"])
def test_data_of_unknown_origin_are_kept(tmp_path, benchmark):
    generate = MAKERS[benchmark][0]
    generate(tmp_path)
    (tmp_path / "tiny.json").unlink()
    before = state(tmp_path)
    for _ in range(2):
        with pytest.raises(UserError, match="DATA_DIR"):
            generate(tmp_path)
    assert state(tmp_path) == before
