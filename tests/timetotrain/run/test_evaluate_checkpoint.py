"""Tests `--evaluate`: a checkpoint gives the logged quality, also in other batches; bad checkpoints and data fail."""

import json
import shutil

import pytest
import tensorflow as tf

from common.distributed import replicas as backends
from common.errors import PeerLostError, UserError
from common.train import checkpoint
from common.train.probe import Probe
from common.train.programs import Programs
from tests.common.train import toy
from tests.timetotrain.run.test_cli import QUICK, corrupt, records_of, refused, run, write_data
from timetotrain.run import cli, evaluate_checkpoint, step_errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(data, checkpoints, qualities by evaluation) of a run that kept all its checkpoints."""
    import numpy as np

    folder, rng = tmp_path_factory.mktemp("evaluate"), np.random.default_rng(0)
    pixels = rng.integers(0, 256, [60, 24, 24, 3]).astype(np.uint8)
    data = write_data(folder / "data", [tf.io.encode_jpeg(p).numpy() for p in pixels])
    checkpoints = folder / "checkpoints"
    flags = [f"--data_dir={data}", f"--result_dir={folder}", f"--checkpoint_dir={checkpoints}"]
    done = run(*QUICK, *flags, "--config.train_epochs=3", "--keep_checkpoints=9")
    assert done.returncode in (0, 1), done.stderr
    log = records_of(next(folder.glob("cpu-tiny/resnet/result_0.txt")))
    saved = sorted(checkpoints.glob("checkpoint_*.npz"))
    return data, saved, [r["value"] for r in log if r["key"] == "eval_accuracy"]


def evaluated(data, path, *flags):
    done = run(*QUICK, f"--data_dir={data}", f"--evaluate={path}", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["quality"]


def test_every_checkpoint_gives_the_quality_that_was_logged(trained):
    data, checkpoints, qualities = trained
    assert len(checkpoints) == len(qualities) == 3
    assert [evaluated(data, c) for c in checkpoints[:1]] == pytest.approx(qualities[:1])
    # A folder stands for its newest checkpoint; the batches differ from those of the run.
    assert evaluated(data, checkpoints[0].parent, "--config.eval_batch_size=4") == pytest.approx(
        qualities[-1]
    )


def test_what_cannot_be_evaluated_is_refused(trained, tmp_path):
    data, checkpoints, _ = trained
    arguments = [*QUICK, f"--data_dir={data}"]
    refused(run(*arguments, f"--evaluate={tmp_path}"), 2, "no checkpoint", str(tmp_path))
    refused(run(*arguments, f"--evaluate={checkpoints[0]}", "--config.width=16"), 2, "network", "flags")


def test_a_damaged_record_is_named(trained, tmp_path):
    data, checkpoints, _ = trained
    damaged = tmp_path / "data"
    shutil.copytree(data, damaged)
    corrupt(damaged / "validation-00000-of-00001", 200)
    done = run(*QUICK, f"--data_dir={damaged}", f"--evaluate={checkpoints[0]}")
    refused(done, 2, str(damaged / "validation-00000-of-00001"), "record 0", "damaged")


# -- Without a command line ----------------------------------------------------------------------------------


OUT_OF_MEMORY = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating\na tensor")


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of the toy network."""
    config = toy.config()
    return checkpoint.save(Programs(toy.Task(config), backends.make(config)), tmp_path)


def failing(error):
    def fail(*_):
        raise error

    return fail


@pytest.mark.parametrize(
    "wrong, message",
    [
        (ValueError("36 examples seen"), "^evaluation: 36 examples seen$"),
        (KeyError("area"), "^evaluation: .* lack something .KeyError: 'area'"),
    ],
)
def test_a_quality_that_fails_is_one_line(saved, monkeypatch, wrong, message):
    monkeypatch.setattr(toy.Task, "quality", failing(wrong))
    with pytest.raises(UserError, match=message):
        evaluate_checkpoint.evaluate(toy.Task(toy.config()), saved)


def test_too_little_memory_is_one_line(saved, monkeypatch):
    monkeypatch.setattr(Probe, "evaluate", failing(OUT_OF_MEMORY))
    with pytest.raises(UserError, match="^out of memory; use a smaller --config.eval_batch_size, or"):
        evaluate_checkpoint.evaluate(toy.Task(toy.config()), saved)
    monkeypatch.setattr(Probe, "one_step", failing(OUT_OF_MEMORY))
    with pytest.raises(UserError, match="^out of memory; use a smaller --config.global_batch_size, or"):
        cli._dry_run(toy.Task(toy.config()), {})


def test_a_lost_peer_is_reported_and_unknown_errors_pass_unchanged(monkeypatch):
    replicas = backends.make(toy.config())
    unknown = tf.errors.InternalError(None, None, "who knows")
    with pytest.raises(tf.errors.InternalError), step_errors.steps_explained(replicas, "", lambda _: None):
        raise unknown
    monkeypatch.setattr(replicas, "peer_lost", lambda error: error is unknown)
    with pytest.raises(PeerLostError), step_errors.steps_explained(replicas, ""):
        raise unknown
