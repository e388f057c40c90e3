"""Tests generated data and its note: made once, remade after an interruption, never in another benchmark's folder."""

import dataclasses

import pytest

import gnmt.tiny
import maskrcnn.tiny
import resnet.tiny
import ssd.tiny
import transformer.tiny
from common.data import tiny_data
from common.detection import drawing
from common.errors import UserError

PICTURES = drawing.Pictures(train_images=2, eval_images=2, train_files=1, eval_files=1)
PHOTOS = dataclasses.replace(resnet.tiny.TINY, train_images=30, eval_images=20, train_files=2, eval_files=1)
PAIR = {"train_pairs": 60, "eval_pairs": 3, "shards": 1}
MAKERS = {
    "ssd": (lambda folder: ssd.tiny.generate(folder, PICTURES), "train-00000-of-00001.tfrecord"),
    "maskrcnn": (lambda folder: maskrcnn.tiny.generate(folder, PICTURES), "train-00000-of-00001.tfrecord"),
    "resnet": (lambda folder: resnet.tiny.generate(folder, PHOTOS), None),
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
    note.write_text(tiny_data.unfinished(benchmark))
    generate(tmp_path)
    again = state(tmp_path)
    assert {n: c for n, (_, c) in again.items()} == {n: c for n, (_, c) in first.items()}
    assert any(again[n][0] != first[n][0] for n in first if n != note.name), "made anew"
    before = state(tmp_path)
    for other in MAKERS.keys() - {benchmark}:
        with pytest.raises(UserError, match=f"holds the generated data of {benchmark} .* another DATA_DIR"):
            MAKERS[other][0](tmp_path)
    assert state(tmp_path) == before


@pytest.mark.parametrize("benchmark", MAKERS)
def test_a_file_that_is_missing_is_made_again(tmp_path, benchmark):
    generate = MAKERS[benchmark][0]
    generate(tmp_path)
    whole = {name: content for name, (_, content) in state(tmp_path).items()}
    for name in whole:
        (tmp_path / name).unlink()
        if name == tiny_data.NOTE:
            with pytest.raises(UserError, match="not made by this program"):
                generate(tmp_path)
            (tmp_path / name).write_bytes(whole[name])
        generate(tmp_path)
        assert {n: content for n, (_, content) in state(tmp_path).items()} == whole


@pytest.mark.parametrize("note", ['{"sett', "[]", "mine", None])
def test_files_beside_somebody_else_s_note_are_kept(tmp_path, note):
    generate, shard = MAKERS["ssd"]
    (tmp_path / shard).write_text("precious")
    if note is not None:
        (tmp_path / tiny_data.NOTE).write_text(note)
    with pytest.raises(UserError, match="not made by this program; give another DATA_DIR"):
        generate(tmp_path)
    assert (tmp_path / shard).read_text() == "precious"


def test_files_that_were_added_are_kept(tmp_path):
    generate, _ = MAKERS["ssd"]
    generate(tmp_path)
    (tmp_path / "train-00001-of-00002.tfrecord").write_text("precious")
    generate(tmp_path)
    with pytest.raises(UserError, match="holds train-00001-of-00002.tfrecord"):
        ssd.tiny.generate(tmp_path, dataclasses.replace(PICTURES, seed=5))
    assert (tmp_path / "train-00001-of-00002.tfrecord").read_text() == "precious"


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
