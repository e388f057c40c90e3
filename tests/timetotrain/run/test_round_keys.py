"""Tests of what a log says in rounds from 5.1 on: the keys of the header, and progress in samples."""

import dataclasses

import pytest

from common.config.run_length import Interval, RunLength
from common.config.schema import Communication
from common.errors import UserError
from common.train import events
from compliance.code.advice import has_framework_log
from compliance.log import find_round
from llama31_8b.config import Config
from mnist import presets as mnist
from tests.benchmarks import records
from timetotrain.run import mllog, round_keys

PRECISIONS = {f"lowest_numerical_precision_in_{place}" for place in ("linear", "attn", "comm")}
PARALLELIZM = {f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")}
BLOCK = Interval(index=2, first_step=1536, num_steps=768, first_epoch=3, last_epoch=3)


def config(ruleset: str = "6.1.0", **changes) -> Config:
    return dataclasses.replace(Config(), ruleset=ruleset, **changes)


def test_each_round_has_its_keys():
    added = {"ruleset", *PRECISIONS, *PARALLELIZM, "micro_batch_size", "config_filename"}
    assert round_keys.header(config("5.1.0")) == {"ruleset": "5.1.0"}
    for ruleset in ("6.0.0", "6.1.0"):
        assert set(round_keys.header(config(ruleset))) == added
    assert round_keys.header(dataclasses.replace(config(), ruleset="0.7.0")) == {}


def test_the_header_says_what_runs():
    shared = config(
        replicas="pjrt", num_replicas=4, accumulation_steps=2, communication=Communication(wire="bf16_sum")
    )
    header = round_keys.header(shared)
    assert [header[f"lowest_numerical_precision_in_{place}"] for place in ("linear", "attn", "comm")] == [
        "bfloat16", "bfloat16", "bfloat16",
    ]  # fmt: skip
    assert header["micro_batch_size"] == 2 and header["config_filename"] == "llama31_8b/presets.py"
    for precision, word, sums in (
        ("fp32", "fp32", "fp32"),
        ("fp64", "fp64", "fp64"),
        ("bf16", "bfloat16", "fp32"),
    ):
        header = round_keys.header(config(precision=precision))
        assert header["lowest_numerical_precision_in_linear"] == word
        assert header["lowest_numerical_precision_in_comm"] == sums
        header = round_keys.header(config(precision=precision, shard_weights=True))
        assert header["lowest_numerical_precision_in_comm"] == word


@pytest.mark.parametrize(
    ("ruleset", "division", "more"),
    [
        ("6.1.0", "closed", {}),
        ("6.0.0", "open", {}),
        ("5.1.0", "closed", {}),
        ("5.1.0", "open", {"epoch_num": 2304 * 16 / 2_562_767}),
    ],
)
def test_progress_counts_samples(ruleset, division, more):
    run = config(ruleset, division=division)
    place = round_keys.place_of(run, RunLength.of(run))
    assert place.of_block(BLOCK, started=True) == {"samples_count": 24_576}
    assert place.of_block(BLOCK, started=False) == {"samples_count": 36_864}
    assert place.of_evaluation(BLOCK) == {"samples_count": 36_864, **more}
    assert isinstance(place.of_evaluation(BLOCK)["samples_count"], int)


@pytest.mark.parametrize("ruleset", Config.rulesets)
def test_a_log_is_found_to_be_of_its_round(ruleset, tmp_path):
    run = config(ruleset)
    log = mllog.RunLog(tmp_path / "result_0.txt", run)
    log.header([("global_batch_size", 16, {})], True)
    log.publish()
    answer = find_round.find(tmp_path / "result_0.txt")
    assert (answer.ruleset, answer.fits) == (ruleset, (ruleset,))
    keys = [record["key"] for record in records(tmp_path / "result_0.txt")]
    assert len(keys) == len(set(keys))


def test_the_log_holds_the_programs_own_output(tmp_path):
    run = config(source="one\n:::MLLOG {}")
    log = mllog.RunLog(tmp_path / "result_0.txt", run)
    log.header([("global_batch_size", 16, {})], True)
    log.record(events.RunStarted(1e9, 0))
    log.record(events.Trained(BLOCK, [4.0] * 768, [1e9 + i for i in range(768)]))
    log.record(events.Evaluated(BLOCK, 1e9 + 800, 3.25, True, {}))
    log.publish()
    text = (tmp_path / "result_0.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(":::MLLOG ")]
    assert "config.optimizer.base_learning_rate=" + str(run.optimizer.base_learning_rate) in lines
    last = "36,864 sequences: log perplexity 3.25 (target 3.3, reached), loss 4.00, after 13 min 20 s"
    assert lines[-1] == last
    assert not [line for line in lines if ":::" in line]
    assert has_framework_log(tmp_path / "result_0.txt")
    old = mnist.PRESETS["cpu-tiny"]
    log = mllog.RunLog(tmp_path / "result_1.txt", old)
    log.header(mnist.hyperparameters(old), True)
    log.publish()
    assert all(line.startswith(":::MLLOG ") for line in (tmp_path / "result_1.txt").open())


@pytest.mark.parametrize("ruleset", ["0.7.0", "5.0.0", "7.0.0"])
def test_a_round_without_the_benchmark_is_refused(ruleset):
    with pytest.raises(UserError, match=r"config.ruleset='.*known: 5.1.0, 6.0.0, 6.1.0"):
        config(ruleset).validate()
