"""Tests the description beside the records: written, read, applied, refused where damaged or contradicted."""

import dataclasses
import json

import pytest

from common.config import data_description
from common.errors import UserError
from resnet.config import Config


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-00000-of-00001").write_bytes(b"records")
    files = data_description.listed(tmp_path, ["train-00000-of-00001"])
    data_description.write(
        tmp_path,
        data_description.Description(
            "resnet",
            ("daisy", "tulip"),
            {"num_classes": 2, "num_train_examples": 7, "num_eval_examples": 3},
            {"data.area_range": [0.5, 1.0]},
            files,
            data_description.digest(files),
            "a test",
            {"train": 7, "eval": 3},
            ("photo.jpg: no picture",),
        ),
    )
    return tmp_path


def test_it_is_read_as_written(folder):
    description = data_description.read(folder)
    assert description.labels == ("daisy", "tulip")
    assert description.fields["num_classes"] == 2
    assert description.broken == ("photo.jpg: no picture",)


@pytest.mark.parametrize("path", [None, "", "gs://bucket/data", "/no/such/folder"])
def test_without_a_description_nothing_changes(path):
    config = Config()
    assert data_description.filled(config, path) is config


def test_it_fills_what_the_data_decide_and_defaults_give_way(folder):
    config = data_description.filled(Config(), folder)
    assert (config.num_classes, config.num_train_examples, config.num_eval_examples) == (2, 7, 3)
    assert config.data.area_range == (0.5, 1.0)
    overrides = [("data.area_range", "0.2,1")]
    typed = dataclasses.replace(config, data=dataclasses.replace(config.data, area_range=(0.2, 1.0)))
    assert data_description.filled(typed, folder, overrides).data.area_range == (0.2, 1.0)


def test_the_same_value_may_be_typed_and_another_is_refused(folder):
    same = dataclasses.replace(Config(), num_classes=2)
    assert data_description.filled(same, folder, [("num_classes", "2")]).num_classes == 2
    other = dataclasses.replace(Config(), num_classes=12)
    with pytest.raises(UserError, match=r"--config.num_classes=12 contradicts the data, whose .* says 2"):
        data_description.filled(other, folder, [("num_classes", "12")])


def test_data_of_another_benchmark_are_refused(folder):
    with pytest.raises(UserError, match="the data are for resnet, not for ssd"):
        data_description.filled(dataclasses.replace(Config(), benchmark="ssd"), folder)


def _change(folder, **fields):
    path = folder / data_description.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"format": 2}, "format 2, this version reads 1"),
        ({"labels": "daisy"}, "labels is 'daisy', not a list"),
        ({"labels": ["daisy", 3]}, "labels holds 3, not a text"),
        ({"fields": []}, r"fields is \[\], not an object"),
        ({"digest": "0"}, "digest does not belong to its files"),
        ({"files": {"train": 3}}, "digest does not belong to its files"),
        ({"unfinished": True}, "has not finished"),
    ],
)
def test_damage_is_one_line_that_names_the_field(folder, fields, message):
    _change(folder, **fields)
    with pytest.raises(UserError, match=message) as caught:
        data_description.read(folder)
    assert data_description.NAME in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"text"', "\ud800".encode("utf-8", "surrogatepass"), "[" * 100000]
)
def test_a_file_that_is_no_description_is_refused(folder, text):
    (folder / data_description.NAME).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match="convert the data again"):
        data_description.read(folder)


def test_a_lost_or_cut_file_is_named(folder):
    shard = folder / "train-00000-of-00001"
    shard.write_bytes(b"record")
    with pytest.raises(UserError, match=r"train-00000-of-00001: has 6 bytes, description.json says 7"):
        data_description.read(folder)
    shard.unlink()
    with pytest.raises(UserError, match="train-00000-of-00001: description.json names it"):
        data_description.read(folder)


@pytest.mark.parametrize("fields", [{"num_clases": 2}, {"num_classes": "many"}, {"data": 3}])
def test_a_field_that_does_not_fit_is_named(folder, fields):
    _change(folder, fields=fields)
    with pytest.raises(UserError, match=r"description.json in --data_dir: .*convert the data again"):
        data_description.filled(Config(), folder)


def test_records_are_refused_until_they_are_described(tmp_path):
    data_description.begin(tmp_path, "resnet")
    with pytest.raises(UserError, match="has not finished"):
        data_description.read(tmp_path)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "1e400", "NaN"])
def test_a_baseline_that_is_no_number_is_not_shown(folder, value):
    path = folder / data_description.NAME
    content = json.loads(path.read_text()) | {"baseline": {"value": "VALUE", "what": "nothing"}}
    path.write_text(json.dumps(content).replace('"VALUE"', value))
    assert data_description.read(folder).baseline == {}
