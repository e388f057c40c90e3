"""Tests that cpu-tiny of MNIST, Llama and PTB reach their targets through run_and_time.sh, with valid logs."""

import pathlib

import pytest

from compliance.api import check
from tests.benchmarks import log_name, records, runner

# Per benchmark: the range of the quality, and logged values.
CASES = {
    "mnist": ((0.985, 1), {"train_samples": 4000, "model": "lstm"}),
    "llama31_8b": ((0.36, 0.6), {"max_sequence_length": 64, "opt_name": "adamw"}),
    "ptb": ((1, 4.0), {"train_samples": 40000, "global_batch_size": 20}),
}


@pytest.mark.parametrize("benchmark", CASES)
def test_reaches_its_target_with_a_log_that_passes(benchmark: str, tmp_path: pathlib.Path) -> None:
    (least, most), logged = CASES[benchmark]
    done = runner(benchmark, timeout=600)(tmp_path / "tiny", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    log = tmp_path / log_name(benchmark)
    assert [f for f in check([log]).findings if f.severity == "error"] == []
    values = {r["key"]: r["value"] for r in records(log)}
    assert least <= values["eval_accuracy"] <= most
    assert {key: values[key] for key in ("smoke_run", *logged)} == {"smoke_run": True, **logged}
