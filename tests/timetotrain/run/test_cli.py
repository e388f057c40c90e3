"""Tests `python -m resnet` with bad arguments, bad data, full disks and signals: one-line errors and true logs."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from common.data import record_counts, tfrecords
from tests.benchmarks import small_disk

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Few, quick steps of the full-depth ResNet-50: 8 blocks of 5 steps.
TINY = [
    "--system=cpu-tiny",
    *(f"--config.{field}" for field in ("width=4", "image_size=24", "num_train_examples=40", "seed=3")),
    *(f"--config.{field}" for field in ("num_eval_examples=20", "global_batch_size=8", "eval_batch_size=8")),
    *(f"--config.{field}" for field in ("train_epochs=8", "epochs_per_block=1")),
]
# AlexNet starts twice as fast, for tests that do not depend on the network.
QUICK = [*TINY, "--config.model=alexnet_bn", "--config.width=8", "--config.image_size=67"]


def command(*arguments):
    return [sys.executable, "-m", "resnet", *map(str, arguments)]


def run(*arguments, **environment):
    done = subprocess.run(
        command(*arguments), cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done


def refused(done, code, *parts):
    """Asserts the exit status, and one error line that holds all of `parts`."""
    assert done.returncode == code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and done.stderr.splitlines()[-1] == errors[0], done.stderr
    assert all(part in errors[0] for part in parts), errors[0]
    return errors[0]


def records_of(log):
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def stop_of(log):
    return records_of(log)[-1]["metadata"]


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 256, [24, 24, 3]).astype(np.uint8) for _ in range(60)]
    return [tf.io.encode_jpeg(p).numpy() for p in pixels]


@pytest.fixture
def data(tmp_path, images):
    return write_data(tmp_path / "data", images)


def write_data(folder, images, label=lambda i: i % 12 + 1, note=True):
    """Writes three files; with `note`, notes their records beside them, as converters do."""
    examples = [
        tfrecords.example({"image/encoded": image, "image/class/label": label(i)})
        for i, image in enumerate(images)
    ]
    tfrecords.write(folder / tfrecords.shard_name("train", 0, 2), examples[:20])
    tfrecords.write(folder / tfrecords.shard_name("train", 1, 2), examples[20:40])
    tfrecords.write(folder / tfrecords.shard_name("validation", 0, 1), examples[40:])
    if note:
        record_counts.write(folder, [path.name for path in folder.glob("*-of-*")])
    return folder


# -- Arguments: refused before TensorFlow is imported --------------------------------------------------------

# Makes an import of TensorFlow fail, which proves that arguments are refused without it.
NO_TENSORFLOW = "raise ImportError('TensorFlow was imported')"


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["--system=cpu-tny", "--data_dir=."], ["--system=cpu-tny: unknown (did you mean cpu-tiny"]),
        ([], ["--system: name a preset", "cpu-tiny", "tpu-v3-2048"]),
        (["--system=cpu-tiny"], ["--data_dir: missing", "init_datasets.sh"]),
        (["--system=cpu-tiny", "--data_dir=/no/where"], ["--data_dir=/no/where: no such folder"]),
        (["--system=cpu-tiny", "--config.width=wide"], ["--config.width=wide: not a whole number"]),
        (["--system=cpu-tiny", "--config.width"], ["--config.width: needs a value"]),
        (
            ["--system=cpu-tiny", "--describe", "--config.schedule.kind=foo"],
            ["config.schedule.kind='foo': unknown; known: constant, poly"],
        ),
        (["--system=cpu-tiny", "--export=x", "--export_programs"], ["expected one argument", "--help"]),
        (
            ["--system=cpu-tiny", "--replicas=mirored"],
            ["--replicas=mirored: unknown (did you mean mirrored, multiworker?)"],
        ),
        (
            ["--system=tpu-v4-512", "--data_dir=.", "--config.width=32"],
            ["config.width=32: the closed rules of resnet 0.7.0 do not free this", "--config.division=open"],
        ),
        (["--sistem=cpu-tiny"], ["Unknown command line flag 'sistem'"]),
        (["--system=cpu-tiny", "--run=first"], ["--run=first"]),
        (["--system=cpu-tiny", "--seed=4294967296"], ["--seed=4294967296", "[0, 4294967295]"]),
        (["--system=cpu-tiny", "surplus"], ["unexpected argument 'surplus'"]),
    ],
    ids=lambda v: " ".join(v)[:60] if v and str(v[0]).startswith("--") else None,
)
def test_bad_arguments(tmp_path, arguments, parts):
    (tmp_path / "tensorflow.py").write_text(NO_TENSORFLOW)
    done = run(f"--result_dir={tmp_path / 'out'}", *arguments, PYTHONPATH=str(tmp_path))
    refused(done, 2, *parts)
    assert done.stdout == "" and not (tmp_path / "out").exists()


def test_result_folder_that_cannot_be_used(tmp_path):
    (tmp_path / "tensorflow.py").write_text(NO_TENSORFLOW)
    (tmp_path / "file").write_text("")
    words = [*TINY, f"--data_dir={tmp_path}"]
    done = run(*words, f"--result_dir={tmp_path / 'file'}", PYTHONPATH=str(tmp_path))
    refused(done, 2, str(tmp_path / "file"), "cannot write the log", "--result_dir")
    done = run(*words, f"--result_dir={tmp_path / ('x' * 300)}", PYTHONPATH=str(tmp_path))
    refused(done, 2, "--result_dir=", "File name too long; name another folder")
    folder = tmp_path / "out" / "cpu-tiny" / "resnet"
    folder.mkdir(parents=True)
    (folder / "result_0.txt").write_text("precious")
    done = run(*words, f"--result_dir={tmp_path / 'out'}", "--run=0", PYTHONPATH=str(tmp_path))
    refused(done, 2, "result_0.txt: exists; give another --run or --result_dir")
    assert [(p.name, p.read_text()) for p in folder.iterdir()] == [("result_0.txt", "precious")]


# -- Without data --------------------------------------------------------------------------------------------


def test_describe_and_dry_run():
    done = run("--describe")
    description = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(description) == [
        *("benchmark", "model", "system", "ruleset", "parameters", "forward_macs_per_example"),
        *("forward_flops_per_example", "global_batch_size", "steps_per_epoch", "train_steps"),
        *("quality_target", "compiled_here", "hyperparameters"),
    ]
    assert description["parameters"] == 25_557_032 and description["quality_target"] == 0.759
    assert description["forward_flops_per_example"] == 2 * description["forward_macs_per_example"]

    done = run("--describe", "--system=tpu-v3-8192")
    description = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (description["parameters"], description["train_steps"]) == (25_557_032, 1738)
    assert description["hyperparameters"]["lars_opt_momentum"] == 0.951807

    began = time.monotonic()
    done = run("--dry_run", *QUICK)
    took = time.monotonic() - began
    assert (done.returncode, done.stderr) == (0, "")
    row = json.loads(done.stdout)
    assert np.isfinite(row["loss"])
    assert min(row["build_seconds"], row["step_seconds"]) > 0
    assert row["build_seconds"] + row["step_seconds"] < took
    assert row["step_processor_seconds"] > 0 and row["example_bytes"] >= row["evaluation_example_bytes"] > 0


# -- Data ----------------------------------------------------------------------------------------------------


def corrupt(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)


def test_no_files_in_the_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    done = run(*TINY, f"--data_dir={tmp_path / 'empty'}", f"--result_dir={tmp_path / 'out'}")
    refused(done, 2, str(tmp_path / "empty"), "no file matches 'train-*'", "init_datasets.sh")
    assert not list((tmp_path / "out").rglob("result*"))


@pytest.mark.parametrize("fault", ["corrupt", "label"])
def test_damaged_data_is_named_and_the_run_aborted(tmp_path, images, fault):
    data = tmp_path / "data"
    if fault == "label":
        write_data(data, images, lambda i: 13 if i == 25 else i % 12 + 1)
        file, words = "train-00001-of-00002", ["record 5", "image/class/label is 13, must be 1..12"]
    else:
        write_data(data, images)
        file, words = "train-00000-of-00002", ["record 0", "damaged"]
        corrupt(data / file, 200)
    done = run(*QUICK, f"--data_dir={data}", f"--result_dir={tmp_path / 'out'}")
    error = refused(done, 2, str(data / file), *words)
    folder = tmp_path / "out" / "cpu-tiny" / "resnet"
    assert sorted(p.name for p in folder.iterdir()) == ["history_0.jsonl", "result_0.txt", "run.json"]
    stop = stop_of(folder / "result_0.txt")
    assert stop["status"] == "aborted" and stop["reason"] in error
    record = json.loads((folder / "run.json").read_text())["runs"]["result_0.txt"]
    assert record["status"] == "aborted" and record["score_minutes"] is None


@pytest.mark.parametrize("note", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_truncated_file_is_named(tmp_path, images, inside, note):
    """The file is cut off inside a record, or exactly between two.

    With a note of the records, its size tells before the run. Without, the run reads it on the clock and is aborted.
    """
    data = write_data(tmp_path / "data", images, note=note)
    if inside:
        path, words = data / "validation-00000-of-00001", ["record 19 is damaged"]
        path.write_bytes(path.read_bytes()[:-30])
    else:
        path, words = data / "train-00001-of-00002", ["hold 37 records, config.num_train_examples is 40"]
        tfrecords.write(path, list(tfrecords.read(path))[:17])
    if note:
        words = [f"has {path.stat().st_size} bytes, records.json beside it says", "copy it again"]
    done = run(*QUICK, f"--data_dir={data}", f"--result_dir={tmp_path / 'out'}")
    error = refused(done, 2, str(path), *words)
    logs = list((tmp_path / "out").rglob("result*"))
    assert [log.name for log in logs] == ([] if note else ["result_0.txt"])
    for log in logs:
        assert "run_start" in [record["key"] for record in records_of(log)]
        stop = stop_of(log)
        assert stop["status"] == "aborted" and stop["reason"] in error


# -- Signals, disks ------------------------------------------------------------------------------------------


def start(*arguments):
    return subprocess.Popen(
        command(*arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition, process):
    until = time.monotonic() + 300
    while not condition():
        assert process.poll() is None and time.monotonic() < until, process.communicate()
        time.sleep(0.05)


def final_weights(folder):
    with np.load(sorted(folder.glob("*.npz"))[-1]) as file:
        return {name: file[name].tobytes() for name in file.files if name != "meta"}


def test_sigterm_saves_and_the_resumed_run_ends_bitwise_as_the_uninterrupted(tmp_path, data):
    flags = [*TINY, f"--data_dir={data}"]

    def folders(name):
        return [f"--checkpoint_dir={tmp_path / name}", f"--result_dir={tmp_path / 'out' / name}"]

    whole = run(*flags, *folders("whole"))
    assert whole.returncode == 1 and "score    none: aborted" in whole.stdout, whole.stderr
    results = tmp_path / "out" / "whole" / "cpu-tiny" / "resnet"
    assert sorted(p.name for p in results.iterdir()) == [
        *("curve_0.png", "history_0.jsonl", "result_0.txt", "run.json")
    ]
    actual = records_of(results / "result_0.txt")
    assert {"key": "smoke_run", "value": True}.items() <= next(
        r for r in actual if r["key"] == "smoke_run"
    ).items()
    assert "not reached in 40 steps" in actual[-1]["metadata"]["reason"]
    assert all(
        line[:7] in ("resnet ", "epoch 1", "run abo") or line[:5] in ("epoch", "step ")
        for line in whole.stderr.splitlines()
    )

    process = start(*flags, *folders("cut"))
    log = tmp_path / "out" / "cut" / "cpu-tiny" / "resnet" / "result_0.txt.partial"
    wait_for(lambda: log.exists() and '"eval_accuracy"' in log.read_text(), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 143, errors
    assert "Traceback" not in errors
    assert stop_of(log.with_suffix("")) == {
        **stop_of(log.with_suffix("")),
        "status": "aborted",
        "reason": "SIGTERM",
    }
    assert not log.exists()
    steps = int(sorted((tmp_path / "cut").glob("*.npz"))[-1].stem.split("_")[1])
    assert 5 <= steps < 40

    resumed = run(*flags, *folders("cut"))
    assert resumed.returncode == 1 and f"resumed from step {steps}" in resumed.stderr, resumed.stderr
    assert final_weights(tmp_path / "cut") == final_weights(tmp_path / "whole")
    record = json.loads((log.parent / "run.json").read_text())["runs"]["result_1.txt"]
    assert record["resumed_from_step"] == steps and record["score_minutes"] is None


def test_sigterm_during_initialization_leaves_no_log(tmp_path, data):
    process = start(*TINY, f"--data_dir={data}", f"--result_dir={tmp_path / 'out'}")
    line = process.stderr.readline()
    assert "initializing" in line
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    # The signal may come while Python collects garbage, whose callbacks print an exception and go on.
    assert process.returncode == 143, errors
    assert errors.splitlines()[-1].startswith("error: SIGTERM during initialization"), errors
    assert not list((tmp_path / "out").rglob("result*"))


def test_full_disk_during_a_run(tmp_path, data):
    """With room for the log but not for a checkpoint, the log still ends with the true status."""
    with small_disk(tmp_path / "disk", 128) as disk:
        out, saved = disk / "out", disk / "saved"
        done = run(*QUICK, f"--data_dir={data}", f"--result_dir={out}", f"--checkpoint_dir={saved}")
        refused(done, 2, "cannot write a checkpoint: No space left on device")
        log = out / "cpu-tiny" / "resnet" / "result_0.txt"
        stop = stop_of(log)
        assert stop["status"] == "aborted" and "No space left" in stop["reason"]
        assert not list(disk.rglob("*.partial")) and not list(disk.rglob("*.npz"))
