"""Tests `borrow` and `diff`: which changes the rules allow after the deadline, and which they do not."""

import argparse
import json
import os
import re
import tarfile
from pathlib import Path

import pytest

from common.errors import UserError
from compliance.changes import answers, borrow, difference, hyperparameters
from lab.bench import altered_trees
from lab.bench.harness import alterations
from lab.bench.harness.scripts import RESULTS
from tests.compliance import result_logs, submission_trees
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
    assert fixed["opt_learning_rate_decay_steps"] == "value = (1200000 - opt_learning_rate_warmup_steps)"
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


# ------------------------------------------------------------------------------------------- two trees


@pytest.fixture
def states(tmp_path):
    """A submitter's tree, and a copy to change."""
    return [submission_trees.tree(tmp_path / name) for name in ("a", "b")]


FOLDER = f"{submission_trees.SYSTEM}/{submission_trees.BENCHMARK}"


def answered(states, label):
    found, one_submitter = difference.compare(*states)
    assert one_submitter
    return {(change.place, change.name): change.answer for change in found.get(label, [])}


def results(tree):
    return sorted((tree / "results" / FOLDER).iterdir())


def test_equal_trees_differ_in_nothing(states, capsys):
    assert difference.compare(*states) == ({}, True)
    assert call(difference, *states) == 0 and capsys.readouterr().out == "no difference\n"


def test_new_runs_of_the_same_settings_may_not_be_sent(states, capsys):
    log = results(states[1])[3]
    log.write_text(submission_trees.log(3, minutes=20))
    assert answered(states, FOLDER) == {("runs", "changed"): "may not"}
    assert call(difference, *states) == 1
    said = capsys.readouterr().out
    assert "result_3.txt: the settings are the same" in said and said.endswith("sent again: 1 may not\n")


@pytest.mark.parametrize(("side", "name"), [(1, "only in A"), (0, "only in B")])
def test_a_run_of_one_tree_alone_may_not_be_sent(states, side, name):
    results(states[side])[3].unlink()
    assert answered(states, FOLDER)["runs", name] == "may not"


def test_the_score_of_other_runs_is_beside_them(tmp_path):
    places = [
        result_logs.write_results(tmp_path / name, "resnet", minutes=m) for name, m in (("a", 30), ("b", 9))
    ]
    found = {change.place: change for change in answers.of_folders(*places, ("0.7.0", "0.7.0"))}
    assert (found["score"].a, found["score"].b, found["score"].answer) == ("30.00", "9.000", "")


def test_runs_of_other_hyperparameters_have_to_be_borrowed(states):
    for index, log in enumerate(results(states[1])):
        log.write_text(submission_trees.log(index).replace('"value": 0.0004', '"value": 0.0005'))
    found = {("settings", "opt_base_learning_rate"): "ask", ("runs", "changed"): "ask"}
    assert answered(states, FOLDER) == found


def test_a_fixed_value_may_be_mended_and_not_broken(states):
    for one, rank in zip(states, (8, 16)):
        for index, log in enumerate(results(one)):
            log.write_text(submission_trees.log(index, more=[record("lora_rank", rank)]))
    assert answered(states, FOLDER)["settings", "lora_rank"] == "may"
    assert answered(states[::-1], FOLDER)["settings", "lora_rank"] == "may not"


def test_a_folder_may_be_withdrawn_and_not_added(states):
    other = states[0] / "results" / submission_trees.SYSTEM / "flux1"
    other.mkdir()
    (other / "result_0.txt").write_text(submission_trees.log(benchmark="flux1"))
    label = f"{submission_trees.SYSTEM}/flux1"
    assert answered(states, label) == {("folder", "withdrawn"): "may"}
    assert answered(states[::-1], label) == {("folder", "new"): "may not"}


def test_code_may_change_and_a_description_by_field(states):
    script = (
        states[1] / "benchmarks" / submission_trees.BENCHMARK / submission_trees.SYSTEM / "run_and_time.sh"
    )
    script.write_text("other")
    changed = submission_trees.description(
        accelerators_per_node="4", hw_notes="a note", framework="jax", division="open"
    )
    path = states[1] / "systems" / f"{submission_trees.SYSTEM}.json"
    path.write_text(json.dumps(changed))
    assert list(answered(states, "benchmarks").values()) == ["may"]
    assert answered(states, f"systems/{path.name}") == {
        ("description", "division"): "may",
        ("description", "hw_notes"): "may",
        ("description", "accelerators_per_node"): "ask",
        ("description", "framework"): "ask",
    }
    assert answered(states[::-1], f"systems/{path.name}")["description", "division"] == "may not"


def test_logs_of_an_earlier_round_need_the_very_same_description(tmp_path):
    states = [submission_trees.tree(tmp_path / name, ruleset=name) for name in ("v5.0", "v5.1")]
    assert answered(states, FOLDER) == {("runs", "sent again"): "ask"}
    path = states[1] / "systems" / f"{submission_trees.SYSTEM}.json"
    path.write_text(json.dumps(submission_trees.description(hw_notes="a note")))
    assert answered(states, f"systems/{path.name}") == {("description", "hw_notes"): "may not"}


def test_of_two_submitters_nothing_is_sent_again(states, capsys):
    for index, log in enumerate(results(states[1])):
        log.write_text(submission_trees.log(index, org="Other", minutes=9))
    moved = states[1].rename(states[1].with_name("Other"))
    assert call(difference, states[0], moved) == 0
    assert capsys.readouterr().out.endswith("differences of two submitters, so nothing is sent again\n")


def test_a_tree_without_results_is_said(tmp_path):
    with pytest.raises(UserError, match=r"no result_\*\.txt below it"):
        call(difference, tmp_path, tmp_path)
    runs(tmp_path / "loose")
    with pytest.raises(UserError, match="name the folder above results/"):
        call(difference, tmp_path, tmp_path)


# ------------------------------------------------------------------------------------------- real logs of round 6.0


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The tree of round v6.0, unpacked; skips where the archive is absent."""
    beside = Path(__file__).parents[2] / ".." / "shared"
    source = Path(os.environ.get("TTT_SHARED", beside)).resolve() / "data" / "published_logs"
    archive = source / "training_results_v6.0_subset.tar.xz"
    if not archive.is_file():
        pytest.skip(f"{archive} is not here; set TTT_SHARED to the folder that has data/published_logs")
    root = tmp_path_factory.mktemp("real")
    with tarfile.open(archive) as tar:
        tar.extractall(root, filter="data")
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return root


def test_faults_in_what_is_sent_again_are_noticed_on_real_logs(real, tmp_path):
    rows = altered_trees.of_borrowing(real, tmp_path)
    assert len(rows) == 9 and [row for row in rows if not row["noticed"]] == []


def test_a_fault_in_a_real_tree_is_noticed_and_the_tree_without_it_is_not_blamed(real, tmp_path):
    faults = {one.name: one for one in alterations.TREES}
    chosen = [faults["power at 0.5 Hz"], faults["another rate in the file"]]
    rows = altered_trees.of_trees(real, tmp_path, chosen)
    assert [row["rules"] for row in rows if row["noticed"]] == [[one.rule] for one in chosen]
    assert not any(row["stock"] for row in rows)


def test_every_recorded_fault_with_a_rule_of_its_own_is_noticed():
    recorded = json.loads((RESULTS / "altered_trees.json").read_text())
    expected = [row for row in recorded["rows"] if row.get("expected")]
    assert len(expected) >= 90 and [row["fault"] for row in expected if not row["noticed"]] == []
    assert recorded["faults"] >= 150 and recorded["noticed"] > 2 * recorded["by_stock"] * 0.9
    assert recorded["published"]["refused_by_new_rules_alone"] == []
    assert recorded["published"]["folders"] >= 200
