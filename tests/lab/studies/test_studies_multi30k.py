"""Tests the Multi30k study: its conversion, and the checkpoint that translates."""

import argparse
import pathlib
import re

import pytest

from common.errors import UserError
from lab.studies import data, multi30k, runner
from tests.benchmarks import line


def block(epoch, step, minute, sacrebleu):
    trained = line("train_loss", 1.0, minute * 60000, epoch_num=epoch, step=step)
    evaluated = line(
        "eval_accuracy", 0.3, minute * 60000, epoch_num=epoch, bleu=sacrebleu + 1, sacrebleu=sacrebleu
    )
    return trained + evaluated


@pytest.mark.parametrize("benchmark", sorted(multi30k.CONVERT))
def test_every_choice_has_its_preset(benchmark):
    import importlib

    assert multi30k.PRESET in importlib.import_module(f"{benchmark}.presets").PRESETS


@pytest.fixture
def captions(tmp_path, monkeypatch):
    """The study with `guarded` replaced: the returned list holds what its calls, conversion and training, do."""
    import gzip

    source = tmp_path / "cache" / "text" / "multi30k"
    source.mkdir(parents=True)
    for language in ("en", "de"):
        (source / f"{multi30k.TEST}.{language}.gz").write_bytes(gzip.compress(language.encode()))
    monkeypatch.setattr(multi30k, "unpack", lambda _: source.parent)
    monkeypatch.setattr(multi30k, "cache", lambda: tmp_path / "cache")
    monkeypatch.setattr(multi30k, "ROOT", tmp_path)
    doing = []

    def guarded(command, **options):
        return doing.pop(0)(list(map(str, command)), **options)

    for module in (multi30k, runner):
        monkeypatch.setattr(module, "guarded", guarded)
    return doing


def converter(command, status=0):
    folder = pathlib.Path(command[3])
    folder.mkdir()
    (folder / "train-0").touch()
    return status


def killed(command):
    converter(command)
    raise KeyboardInterrupt


def test_a_conversion_that_was_interrupted_is_begun_again(captions, tmp_path):
    folder = tmp_path / "cache" / "multi30k-gnmt"
    captions += [killed, lambda command: converter(command, 1), converter]
    with pytest.raises(KeyboardInterrupt):
        multi30k._convert("gnmt")
    with pytest.raises(UserError, match="converting .* failed"):
        multi30k._convert("gnmt")
    assert not (folder / "test.reference").exists()
    for _ in range(2):  # The second call has nothing to do.
        assert multi30k._convert("gnmt") == folder
    assert sorted(p.name for p in folder.iterdir()) == ["test.reference", "test.source", "train-0"]
    assert (folder / "test.reference").read_text() == "de"
    assert sorted(p.name for p in folder.parent.iterdir()) == ["multi30k-gnmt", "text"]
    # The text may be a link to a folder that does not belong to the study.
    assert [p.name for p in (folder.parent / "text").iterdir()] == ["multi30k"]


def test_a_conversion_onto_a_full_disk_is_one_line(captions, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    captions.append(converter)
    monkeypatch.setattr(data.os, "replace", full)
    with pytest.raises(UserError, match="multi30k-gnmt: cannot write: No space left on device; free space"):
        multi30k._convert("gnmt")


def translation(command, stdout):
    assert re.search(
        "all-epochs-[0-9a-f]{8}/checkpoint_00000040.npz$", command[command.index("gnmt") + 1 :][2]
    )
    stdout.write('messages\n{"bleu": 21.0, "sacrebleu": 20.0}\n')
    stdout.flush()
    return 0


def test_the_best_checkpoint_translates_the_test_captions(captions, tmp_path, monkeypatch, capsys):
    """And a run that an exception ended is not published."""
    lines = line("run_start") + block(2, 20, 1, 10.0) + block(4, 40, 2, 30.0) + block(6, 60, 3, 25.0)
    reasons = ["IndexError: out of range", "the target was not reached in 60 steps"]
    args = argparse.Namespace(benchmark="gnmt", overrides=[])

    def train(self, command, started=None, **options):
        (folder,) = (word.partition("=")[2] for word in command if word.startswith("--result_dir="))
        log = pathlib.Path(folder, multi30k.PRESET, "gnmt", "result_0.txt")
        log.parent.mkdir(parents=True)
        stop = line("run_stop", time_ms=4 * 60000, status="aborted", reason=reasons.pop(0))
        log.write_text(lines + stop)
        return 1

    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner.Children, "run", train)
    captions += [converter, translation]
    with pytest.raises(UserError, match="failed: no message"):
        multi30k.run(args)
    folder = tmp_path / "lab/studies" / "multi30k"
    assert not folder.exists()
    assert multi30k.run(args) == 0 and not captions
    text = capsys.readouterr().out
    assert (
        "| val | 4 | 2.0 | 30.0 | 31.0 |" in text and "| test_2016_flickr | 4 | 2.0 | 20.0 | 21.0 |" in text
    )
    assert sorted(p.name for p in folder.iterdir()) == ["gnmt.png"]
