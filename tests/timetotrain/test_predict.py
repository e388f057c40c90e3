"""Tests what `timetotrain predict` writes, with made-up answers in place of a network's."""

import json
import types

import common.export
from timetotrain import cli
from timetotrain.use import export


def test_a_file_s_name_that_is_not_utf8_is_an_escape(tmp_path, monkeypatch, capsys):
    network = types.SimpleNamespace(kind="text", seconds=[])
    inference = types.SimpleNamespace(
        load=lambda model, trust: network,
        files_in=lambda network, files: (files, []),
        ask=lambda network, files, *_: ({"file": name} for name in files),
    )
    monkeypatch.setattr(common.export, "inference", inference, raising=False)
    monkeypatch.setattr(common.export, "pictures", None, raising=False)
    path = tmp_path / "answers.json"
    assert cli.main(["predict", "model", "\udcff.jpg", "--json", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == [{"file": "\udcff.jpg"}]
    assert cli.main(["predict", "model", "\udcff.jpg"]) == 0
    assert capsys.readouterr().out == '{"file": "\\udcff.jpg"}\n'


def test_a_bad_line_of_text_is_a_line_and_the_others_are_answered(monkeypatch, capsys):
    network = types.SimpleNamespace(kind="translation", seconds=[])
    answers = [
        {"file": "a.txt", "line": 2, "error": "a.txt: line 2: not UTF-8"},
        {"file": "a.txt", "line": 3, "translation": "x"},
    ]
    inference = types.SimpleNamespace(
        load=lambda *_: network, ask=lambda *_: iter(answers), files_in=lambda _, files: (files, [])
    )
    monkeypatch.setattr(common.export, "inference", inference, raising=False)
    monkeypatch.setattr(common.export, "pictures", None, raising=False)
    assert cli.main(["predict", "model", "a.txt"]) == 2
    output = capsys.readouterr()
    assert [json.loads(line) for line in output.out.splitlines()] == answers[1:]
    assert output.err.splitlines() == [
        "left out: a.txt: line 2: not UTF-8",
        "error: 1 input left out, as the lines above say; the others are answered",
    ], "no line about an unmeasured latency"


def test_a_missing_package_of_a_format_is_named_before_anything_is_loaded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(common.export, "trained", None, raising=False)  # Its use would raise.
    for kind, package in (("onnx", "tf2onnx"), ("safetensors", "safetensors")):
        assert cli.main(["export", "nowhere", str(tmp_path / "out"), f"--format={kind}"]) == 2
        assert f"error: --format={kind}: {package} is not installed; pip install" in capsys.readouterr().err
    assert export.check_package("savedmodel") is None
