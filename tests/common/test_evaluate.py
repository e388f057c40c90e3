"""`--evaluate`: a checkpoint gives the quality that its run logged; other data, batches and networks."""

import json

import pytest

from tests.common.test_app import QUICK, records_of, refused, run, write_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(data, checkpoints, qualities by evaluation) of a run whose checkpoints all stayed."""
    import numpy as np
    import tensorflow as tf

    folder, rng = tmp_path_factory.mktemp("evaluate"), np.random.default_rng(0)
    pixels = rng.integers(0, 256, [60, 24, 24, 3]).astype(np.uint8)
    data = write_data(folder / "data", [tf.io.encode_jpeg(p).numpy() for p in pixels])
    checkpoints = folder / "checkpoints"
    flags = [f"--data_dir={data}", f"--result_dir={folder}", f"--checkpoint_dir={checkpoints}"]
    done = run(*QUICK, *flags, "--config.train_epochs=3", "--keep_checkpoints=9")
    assert done.returncode in (0, 1), done.stderr
    log = records_of(next(folder.glob("cpu-tiny/resnet/result_0.txt")))
    return data, sorted(checkpoints.iterdir()), [r["value"] for r in log if r["key"] == "eval_accuracy"]


def evaluated(data, path, *flags):
    done = run(*QUICK, f"--data_dir={data}", f"--evaluate={path}", *flags)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["quality"]


def test_every_checkpoint_gives_the_quality_that_was_logged(trained):
    data, checkpoints, qualities = trained
    assert len(checkpoints) == len(qualities) == 3
    assert [evaluated(data, c) for c in checkpoints[:1]] == pytest.approx(qualities[:1])
    # The newest of a folder; in other batches than those of the run.
    assert evaluated(data, checkpoints[0].parent, "--config.eval_batch_size=4") == pytest.approx(
        qualities[-1]
    )


def test_what_cannot_be_evaluated_is_refused(trained, tmp_path):
    data, checkpoints, _ = trained
    arguments = [*QUICK, f"--data_dir={data}"]
    refused(run(*arguments, f"--evaluate={tmp_path}"), 2, "no checkpoint", str(tmp_path))
    refused(run(*arguments, f"--evaluate={checkpoints[0]}", "--config.width=16"), 2, "network", "flags")
