"""Tests the comparison of two folders of runs."""

import argparse
from pathlib import Path

import pytest

from common.errors import UserError
from compliance.report import compare
from compliance.submission.scores import score_directory
from tests.compliance import result_logs


@pytest.fixture
def folders(tmp_path):
    """Two sets of resnet runs that differ in time and learning rate."""
    places = []
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
        places.append(str(place))
    return places


def call(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


def rows(*sides):
    return {name: rest for name, *rest in compare.compare(*map(score_directory, sides))}


def test_runs(folders):
    actual = rows(*folders)
    assert actual["score, minutes"] == ["32.00", "17.00", "0.5312"]
    assert actual["lars_opt_base_learning_rate"][:2] == ["13", "10"]
    assert all(a == b for a, b, _ in (actual["global_batch_size"], actual["quality"]))


def test_text_shows_what_differs_and_all_on_request(folders, capsys):
    assert call(*folders) == 0
    brief = capsys.readouterr().out
    assert "score, minutes" in brief and "global_batch_size" not in brief
    assert call(*folders, "--all") == 0
    assert "global_batch_size" in capsys.readouterr().out
    assert call(folders[0], folders[0]) == 0 and "are equal" in capsys.readouterr().out


def test_what_is_no_folder_of_runs(folders):
    with pytest.raises(UserError, match="name a results folder or a log"):
        call(folders[0], "nothing-like-it")
    description = Path(folders[0], "dgx-1.json")
    description.write_text('{"submitter": "Lab", "system_name": "dgx-1"}')
    with pytest.raises(UserError, match="dgx-1.json: no record of a log"):
        call(description, description)


def test_an_integer_beyond_every_float_has_no_ratio(folders):
    path = Path(folders[0]) / "result_0.txt"
    text = path.read_text().replace(
        '"global_batch_size", "value": ', f'"global_batch_size", "value": {"9" * 400}'
    )
    path.write_text(text)
    assert rows(folders[1], folders[0])["global_batch_size"][-1] == ""
