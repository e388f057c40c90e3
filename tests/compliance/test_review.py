"""Tests `borrow`: which changes the rules allow after the deadline, and which they do not."""

import argparse
import json
import re

import pytest

from common.errors import UserError
from compliance.changes import borrow, hyperparameters
from tests.compliance import submission_trees
from tests.compliance.submission_trees import record

# What a log of llama31_8b has beside the header: the rules of 6.0.0 fix all but the first three.
LLAMA = {
    "opt_base_learning_rate": 8e-4, "opt_end_learning_rate": 8e-5, "opt_learning_rate_warmup_steps": 128,
    "opt_learning_rate_decay_steps": 1_199_872, "opt_adamw_beta_1": 0.9, "opt_name": "adamw", "max_steps": 1_200_000,
    "gradient_accumulation_steps": 1, "tensor_parallelism": 1, "lowest_numerical_precision_in_linear": "fp8",
    "config_filename": "a.sh",
}  # fmt: skip


def runs(folder, org="Own", benchmark="llama31_8b", batch=32, count=3, samples=172_032, **changes):
    """Writes a folder of runs; a change to None leaves the setting out."""
    folder.mkdir(parents=True)
    said = {name: value for name, value in {**LLAMA, **changes}.items() if value is not None}
    rate = said.pop("opt_base_learning_rate", 0)
    more = [record(name, value) for name, value in said.items()]
    for index in range(count):
        text = submission_trees.log(
            index, benchmark=benchmark, org=org, batch=batch, more=more, samples=samples
        )
        text = text.replace('"value": 0.0004', f'"value": {rate}')
        (folder / f"result_{index}.txt").write_text(text)
    return folder


def borrowed(own, other, again=None):
    sides = (hyperparameters.read(path, "6.0.0") for path in (own, other, again) if path)
    return borrow.compare(*sides)


def kinds(found):
    return {row.name: row.kind for row in found.rows}


def test_batches_are_free_rates_a_group_and_fixed_values_stay(tmp_path):
    other = runs(
        tmp_path / "other", "Other", batch=16, opt_base_learning_rate=6e-4, opt_end_learning_rate=6e-5,
        opt_learning_rate_warmup_steps=64, opt_learning_rate_decay_steps=1_199_936, tensor_parallelism=2,
    )  # fmt: skip
    actual = borrowed(runs(tmp_path / "own"), other)
    assert actual.refused == () and kinds(actual) == {
        "opt_base_learning_rate": "group", "opt_end_learning_rate": "fixed", "opt_learning_rate_warmup_steps": "group",
        "global_batch_size": "batch", "opt_learning_rate_decay_steps": "fixed", "tensor_parallelism": "system",
    }  # fmt: skip
    fixed = {row.name: row.rule for row in actual.rows if row.kind == "fixed"}
    assert fixed["opt_learning_rate_decay_steps"] == "value = 1200000 - opt_learning_rate_warmup_steps"
    assert fixed["opt_end_learning_rate"] == "0.1 x opt_base_learning_rate" and actual.same == 6


@pytest.mark.parametrize(
    ("name", "benchmark", "phrase"),
    [
        ("dropout", "llama31_8b", "0"),
        ("max_sequence_length", "llama2_70b_lora", "8,192 or 8,196"),
        ("opt_weight_decay", "llama2_70b_lora", "0.0001"),
        ("opt_gradient_clip_norm", "llama2_70b_lora", "0.3"),
        ("opt_end_learning_rate", "gpt_oss_20b", "4e-05 or 0.1 x opt_base_learning_rate"),
    ],
)
def test_what_the_written_rules_fix_is_not_borrowed(name, benchmark, phrase):
    assert hyperparameters.kind(name, benchmark, "6.0.0") == hyperparameters.FIXED
    assert hyperparameters.rule(name, benchmark, "6.0.0") == phrase
    settings = {name: 7, "opt_base_learning_rate": 4e-4}
    assert not hyperparameters.obeys(name, settings, benchmark, "6.0.0")


@pytest.mark.parametrize(
    ("own", "other", "reason"),
    [
        ({}, {"benchmark": "llama31_405b"}, "OWN is llama31_8b, OTHER llama31_405b"),
        ({"benchmark": "llama31_405b"}, {"benchmark": "llama31_405b", "batch": 64}, "the rules allow no borrowing"),
        ({}, {"org": "Own", "batch": 64}, "both are of Own"),
        ({}, {}, "no hyperparameter differs"),
        ({}, {"opt_adamw_beta_1": 0.8}, "opt_adamw_beta_1: OTHER has 0.8, the rules fix 0.9"),
        ({}, {"opt_learning_rate_warmup_steps": 64}, "opt_learning_rate_decay_steps: OTHER has 1,199,872"),
    ],
)  # fmt: skip
def test_what_may_not_be_borrowed(tmp_path, own, other, reason):
    found = borrowed(runs(tmp_path / "own", **own), runs(tmp_path / "other", **{"org": "Other", **other}))
    assert [line for line in found.refused if reason in line], found.refused


def test_a_round_is_left_alone(tmp_path):
    own, other = runs(tmp_path / "own"), runs(tmp_path / "other", "Other", batch=64)
    sides = hyperparameters.read(own, "6.0.0"), hyperparameters.read(other, "5.1.0")
    assert "OWN is of round 6.0.0, OTHER of 5.1.0" in borrow.compare(*sides).refused[0]


RATES = {"opt_base_learning_rate": 6e-4, "opt_end_learning_rate": 6e-5}


@pytest.mark.parametrize(
    ("again", "wrong"),
    [
        (RATES, []),
        ({**RATES, "batch": 64, "gradient_accumulation_steps": 2}, []),
        ({"opt_base_learning_rate": 6e-4}, ["opt_end_learning_rate"]),
        ({**RATES, "opt_base_learning_rate": 7e-4}, ["opt_base_learning_rate", "opt_end_learning_rate"]),
        ({**RATES, "max_steps": 1000}, ["max_steps"]),
        ({**RATES, "lowest_numerical_precision_in_linear": "fp4"}, ["lowest_numerical_precision_in_linear"]),
        ({**RATES, "lora_rank": 8}, ["lora_rank"]),
        ({**RATES, "tensor_parallelism": 2}, []),
        ({**RATES, "org": "Third"}, ["sent again by Third"]),
    ],
)
def test_what_was_sent_again_is_the_whole_group_and_nothing_else(tmp_path, again, wrong):
    own, other = runs(tmp_path / "own"), runs(tmp_path / "other", "Other", **RATES)
    found = borrowed(own, other, runs(tmp_path / "again", **again))
    assert [line.partition(":")[0].partition(",")[0] for line in found.refused] == wrong
    moved = any("tensor_parallelism: say why" in note for note in found.notes)
    assert moved == ("tensor_parallelism" in again)


def test_faster_convergence_than_the_other_s_is_noted(tmp_path):
    own, other = runs(tmp_path / "own"), runs(tmp_path / "other", "Other", **RATES)
    again = runs(tmp_path / "again", **RATES, samples=100_000)
    assert any("sent again, it converges after 100,000" in note for note in borrowed(own, other, again).notes)


def call(module, *words):
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return module.run(parser.parse_args([str(word) for word in words]))


def test_borrow_prints_a_table_and_its_status(tmp_path, capsys):
    own, other = runs(tmp_path / "own"), runs(tmp_path / "other", "Other", **RATES)
    assert call(borrow, own, other, "--ruleset=6.0.0") == 0
    text = capsys.readouterr().out
    assert re.search(r"opt_base_learning_rate +0\.0008 +0\.0006\n", text) and text.endswith("\nallowed\n")
    assert call(borrow, own, own, "--ruleset=6.0.0", "--format=json") == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["allowed"] and said["rows"] == [] and said["benchmark"] == "llama31_8b"
    with pytest.raises(UserError, match=r"no result_\*\.txt in it"):
        call(borrow, own, tmp_path)
