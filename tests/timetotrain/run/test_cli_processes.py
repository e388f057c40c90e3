"""Tests `python -m resnet` in two processes under Horovod: one log, one checkpoint, messages from one process."""

import json
import subprocess
import sys

import pytest

from compliance.api import check
from tests.common.distributed.replicas import processes
from tests.timetotrain.run.test_cli import QUICK, command, final_weights, images, records_of, run, write_data

__all__ = ["images"]  # A fixture.
HOROVOD = ["--replicas=horovod", "--config.num_replicas=2"]


@pytest.fixture
def data(tmp_path, images):
    """Files without a note of their records, which a run tells before it starts."""
    return write_data(tmp_path / "data", images, note=False)


def launched(*arguments):
    """The command line under timetotrain launch, with two processes on this machine."""
    return [
        sys.executable, "-m", "timetotrain", "launch", "--replicas=horovod", "--processes=2", "--",
        *command(*arguments),
    ]  # fmt: skip


def test_a_run_of_two_processes(tmp_path, data):
    processes.require("horovod")
    flags = [*QUICK, *HOROVOD, f"--data_dir={data}", f"--checkpoint_dir={tmp_path / 'saved'}"]
    flags.append(f"--result_dir={tmp_path / 'out'}")
    first = subprocess.run(
        launched(*flags, "--config.train_epochs=2"), cwd=processes.ROOT, capture_output=True, text=True,
        timeout=400, check=False,
    )  # fmt: skip
    assert first.returncode == 1, first.stderr
    # The second process prints nothing, and the launcher nothing about a run that ended as announced.
    assert "rank 1" not in first.stderr and first.stderr.count("initializing") == 1
    assert first.stderr.count("records.json does not know them") == 2  # Training files, evaluated ones.
    assert first.stdout.splitlines()[1] == "score    none: aborted"

    folder = tmp_path / "out" / "cpu-tiny" / "resnet"
    assert sorted(p.name for p in folder.iterdir()) == [
        "curve_0.png",
        "history_0.jsonl",
        "result_0.txt",
        "run.json",
    ]
    log = folder / "result_0.txt"
    assert {f.rule for f in check([log]).findings if f.severity == "error"} == {"eval_accuracy.target"}
    keys = [r["key"] for r in records_of(log)]
    assert keys.count("eval_accuracy") == keys.count("block_start") == 2
    assert "not reached in 10 steps" in records_of(log)[-1]["metadata"]["reason"]
    record = json.loads((folder / "run.json").read_text())["runs"]["result_0.txt"]
    assert record["config"]["replicas"] == "horovod" and record["status"] == "aborted"
    assert final_weights(tmp_path / "saved")


def test_without_the_launcher_it_is_named(data):
    done = run(*QUICK, *HOROVOD, f"--data_dir={data}")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "error: config.replicas=horovod: started without a launcher; use `timetotrain launch"
    )
