"""Tests lists of pictures and files of sentences as people have them, and on which side an example is."""

import tarfile

import numpy as np
import pytest
from PIL import Image

from common.data.folder_conversion import Options
from common.text import custom_text
from tests.timetotrain.converting import convert, reported


def shaded(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    patches = np.random.default_rng(shade).integers(0, 255, (4, 5, 3), np.uint8)
    Image.fromarray(patches).resize((160, 128), Image.Resampling.BICUBIC).save(path)


def test_a_list_at_the_root_names_splits_by_folders_and_what_it_lists_is_not_skipped(tmp_path):
    rows = [(f"{'test' if n > 5 else 'train'}/{n}.png", "ab"[n % 2], "long " * 40_000) for n in range(8)]
    for number, (name, *_) in enumerate(rows):
        shaded(tmp_path / "set" / name, number)
    lines = ["file_name,label,note,dataset", *(f"{name},{label},{note},mine" for name, label, note in rows)]
    (tmp_path / "set/metadata.csv").write_text("\n".join(lines))
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no-page") == 0
    report = reported(tmp_path / "out")
    assert report["taken"] == {"pictures to train on": 6, "pictures to evaluate on": 2}
    assert list(report["skipped"]) == ["a column that is not read"]


def test_a_group_stays_on_one_side_and_so_do_near_copies(tmp_path):
    lines = ["file_name,label,patient"]
    for n in range(24):
        shaded(tmp_path / f"set/{n}.png", n)
        lines.append(f"{n}.png,{'ab'[n % 2]},p{n // 4}")
    for n in range(24, 30):  # Copies of another quality, some of them mirrored.
        with Image.open(tmp_path / f"set/{n - 24}.png") as image:
            copy = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if n % 2 else image.copy()
            copy.convert("RGB").save(tmp_path / f"set/{n}.jpg", quality=60)
        lines.append(f"{n}.jpg,{'ab'[n % 2]},q{n}")
    (tmp_path / "set/metadata.csv").write_text("\n".join(lines))
    for seed in range(3):
        out = tmp_path / f"out{seed}"
        assert convert("resnet", tmp_path / "set", out, "--no-page", "--eval-part=0.3", f"--seed={seed}") == 0
        held = {int(line.split(".")[0]) for line in (out / "held_out.txt").read_text().split()}
        side = [n in held for n in range(30)]
        assert 0 < sum(side) < 30
        assert all(side[n] == side[n - n % 4] for n in range(24))
        assert all(side[n] == side[n - 24] for n in range(24, 30))


def test_a_large_loss_is_suspicious_and_a_member_twice_is_said(tmp_path, capsys):
    for n in range(12):
        shaded(tmp_path / f"p{n}.png", n)
        (tmp_path / f"p{n}.cls").write_text("ab"[n % 2])
    with tarfile.open(tmp_path / "set.tar", "w") as tar:
        for n in [*range(12), 0]:
            for suffix in ("png", "cls"):
                tar.add(tmp_path / f"p{n}.{suffix}", f"{n}.{suffix}")
        for n in range(20, 40):
            tar.add(tmp_path / "p1.cls", f"{n}.cls")
    (tmp_path / "set").mkdir()
    (tmp_path / "set.tar").rename(tmp_path / "set/0.tar")
    assert convert("resnet", tmp_path / "set", tmp_path / "out", "--no-page") == 0
    report = reported(tmp_path / "out")
    assert report["left_out"]["a member that is there twice; the later one is read"]["count"] == 2
    assert any("a large part left out (an example without a picture" in one for one in report["suspicious"])
    assert convert("resnet", tmp_path / "set", tmp_path / "strict", "--no-page", "--strict") == 2
    assert "a large part left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "program"),
    [
        ('<refset setid="a"><doc><seg id="1">a</seg></doc></refset>', "SGM"),
        ("<?xml version='1.0'?>\n<tmx>", "TMX"),
    ],
)
def test_sentences_with_markup_are_refused_by_name(tmp_path, capsys, content, program):
    path = tmp_path / "a.xml"
    path.write_text(content + "\n")
    assert convert("transformer", path, path, tmp_path / "out") == 2
    assert program in capsys.readouterr().err


def test_translations_of_one_sentence_stay_on_one_side(tmp_path):
    source, target = tmp_path / "a.en", tmp_path / "a.sv"
    source.write_text("".join(f"Sentence {n // 2}\n" for n in range(400)))
    target.write_text("".join(f"mening {n}\n" for n in range(400)))
    with custom_text.prepared([source, target], Options(eval_part=0.2)) as pairs:
        sides = [
            set(path.read_text().split("\n")) - {""}
            for path in (pairs.train.sources[0], pairs.held.sources[0])
        ]
        assert sides[0] and sides[1] and not sides[0] & sides[1]
