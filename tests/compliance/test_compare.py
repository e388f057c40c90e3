"""Tests the comparison of two results or two systems, in three formats."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import systems
from common.errors import UserError
from compliance.report import compare
from tests.compliance import result_logs


@pytest.fixture
def folders(tmp_path):
    """Two sets of resnet runs that differ in time and learning rate."""
    made = []
    for name, minutes in (("first", 30), ("second", 15)):
        place = tmp_path / name / "results" / "dgx-1" / "resnet"
        place.mkdir(parents=True)
        for index in range(5):
            text = result_logs.log("resnet", index, minutes=minutes + index)
            if name == "second":
                text = text.replace(
                    '"lars_opt_base_learning_rate", "value": 13.0',
                    '"lars_opt_base_learning_rate", "value": 10.0',
                )
            (place / f"result_{index}.txt").write_text(text)
        made.append(str(place))
    return made


def call(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


def rows(*sides):
    return {row.name: row for row in compare.compare(*sides).rows}


def test_runs(folders):
    actual = rows(*folders)
    assert (actual["score, minutes"].a, actual["score, minutes"].b) == ("32.00", "17.00")
    assert actual["score, minutes"].note == "x 0.5312"
    assert (actual["lars_opt_base_learning_rate"].a, actual["lars_opt_base_learning_rate"].b) == ("13", "10")
    assert not actual["global_batch_size"].differs and not actual["quality"].differs


def test_text_shows_what_differs_and_all_on_request(folders, capsys):
    assert call(*folders) == 0
    brief = capsys.readouterr().out
    assert "score, minutes" in brief and "global_batch_size" not in brief
    assert call(*folders, "--all") == 0
    assert "global_batch_size" in capsys.readouterr().out


def test_a_thing_equals_itself(folders, capsys):
    assert not [row for row in rows(folders[0], folders[0]).values() if row.differs]
    assert call(folders[0], folders[0]) == 0
    assert "are equal" in capsys.readouterr().out


def test_systems_by_name_and_by_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**systems.load("dgx-2h"), "other_software_stack": {"nccl": "2.7"}}))
    found = rows("dgx-1", str(path))
    assert found["accelerators in all"].note == "x 2"
    assert found["other_software_stack"].b == '{"nccl": "2.7"}'
    assert found["accelerator_model_name"].differs and not found["number_of_nodes"].differs


def test_json_and_html(folders, tmp_path, capsys):
    assert call(*folders, "--format", "json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["kind"] == "runs" and {"name", "a", "b", "differs", "note"} == set(content["rows"][0])
    path = tmp_path / "both.html"
    assert call("dgx-1", "summit-8", "--format", "html", "-o", path) == 0
    page = path.read_text().replace("<wbr>", "")
    assert '<tr class="differs"><th scope="row">accelerator_model_name</th>' in page
    assert "NVIDIA V100-SXM2-16GB (300 W)" in page and "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("b", "words"),
    [
        ("nothing-like-it", "no such log"),
        ("{runs}", "two of one kind"),
        ("{bad}", "not JSON"),
        ("{list}", "not a JSON object"),
        ("{pipe}", "no plain file"),
    ],
)
def test_sides_that_do_not_go_together(folders, tmp_path, b, words):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    os.mkfifo(tmp_path / "pipe.json")
    side = b.format(runs=folders[0], **{name: tmp_path / f"{name}.json" for name in ("bad", "list", "pipe")})
    with pytest.raises(UserError, match=words):
        call("dgx-1", side)


def test_what_a_log_says_is_escaped(folders, tmp_path):
    for path in Path(folders[0]).iterdir():
        path.write_text(path.read_text().replace("lars_opt_momentum", "<script>_x"))
    assert call(*folders, "--format", "html", "-o", tmp_path / "out.html") == 0
    page = (tmp_path / "out.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page


def test_an_integer_beyond_every_float_has_no_ratio(folders):
    path = Path(folders[0]) / "result_0.txt"
    text = path.read_text().replace(
        '"global_batch_size", "value": ', f'"global_batch_size", "value": {"9" * 400}'
    )
    path.write_text(text)
    assert rows(folders[1], folders[0])["global_batch_size"].note == ""
    path = Path(folders[0]).parent / "system.json"
    path.write_text(json.dumps(systems.load("dgx-1") | {"number_of_nodes": "9" * 5000}))
    assert rows(str(path), "dgx-1")["accelerators in all"].a == ""


def test_a_terminal_of_few_characters_shows_escapes(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(systems.load("dgx-1") | {"submitter": "Ünï\ud800"}))
    done = subprocess.run(
        [sys.executable, "-m", "timetotrain", "compare", "dgx-1", str(path)],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "\\xdcn\\xef\\ud800" in done.stdout and not done.stderr
