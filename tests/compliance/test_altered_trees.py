"""Tests what the checks say of altered trees, and what a report shows of odd logs."""

import csv
import json

import pytest

from compliance.api import check
from compliance.findings import Finding
from compliance.formats import as_text, merged
from compliance.report import charts, page
from compliance.report import index as rows_of_index
from compliance.report.published import published_scores
from compliance.submission import coherence, rcp, summary, tree_runs
from compliance.submission.runs import read_run
from compliance.submission.tree import judge_tree
from tests.compliance import llama_logs, made_logs
from tests.compliance.test_altered import edited, without
from timetotrain import cli

# ------------------------------------------------------------------------------------------------- trees


@pytest.fixture
def tree(tmp_path):
    """Returns make(logs, folder, submitter), which writes a tree of round 5.1 and returns the submitter's folder."""

    def make(logs=None, folder="Other_Lab", description=None):
        described = json.dumps(llama_logs.description(**(description or {})))
        org = tmp_path / "training_results_v5.1" / folder
        return llama_logs.tree(org, logs, described=described, code="implementations/nemo")

    return make


def of_tree(org):
    """{rule: finding} of a tree, and the verdict."""
    outcome = check([org])
    return {finding.rule: finding for finding in outcome.findings}, outcome.verdict.answer


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"scaling_factor": 0.5}', "less than 1"),
        ("", "not JSON"),
        ('{"scaling_factor": NaN}', "not a positive number"),
        ('{"scaling_factor": "1.2"}', "not a positive number"),
        ('{"scaling_factor": 1e999}', "not a positive number"),
        ('{"scaling_factor": ' + "9" * 5000 + "}", "not JSON"),
        ('{"factor": 1.2}', "no scaling_factor"),
        ("[1.2]", "no scaling_factor"),
    ],
)
def test_a_scaling_file_that_does_not_count_is_an_error(tree, content, says):
    org = tree()
    before = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].card.score
    (org / "results" / "box" / "llama2_70b_lora" / "scaling.json").write_text(content)
    findings, verdict = of_tree(org)
    assert verdict == "no-go" and findings["tree.scaling"].severity == "error"
    assert says in findings["tree.scaling"].found
    assert summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].card.score == before


def test_a_scaling_file_never_lowers_the_factor_of_the_convergence_test(tree):
    """Runs of 3,072 samples pass the test and are normalized to the reference's mean."""
    logs = (without(llama_logs.log(index), r'"eval_\w+".*"samples_count": 3456', 3) for index in range(10))
    org = tree([edited(log, "eval_accuracy", 0.9245, at=4) for log in logs])
    card = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"].card
    test_factor = card.scaling
    assert test_factor > 1.03
    place = org / "results" / "box" / "llama2_70b_lora" / "scaling.json"
    for factor, counts in (
        (test_factor / 2, test_factor),
        (1.0, test_factor),
        (test_factor, test_factor),
        (1.5, 1.5),
    ):
        place.write_text(json.dumps({"scaling_factor": factor}))
        result = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"]
        assert result.card.scaling == counts
        assert result.card.score / counts == pytest.approx(card.score / test_factor)
        assert ("tree.scaling" in of_tree(org)[0]) == (factor < test_factor)
    rounded = int(1000 * test_factor) / 1000  # as training_results_v3.1, ASUSTeK
    place.write_text(json.dumps({"scaling_factor": rounded}))
    result = summary.systems(judge_tree(org))[0].results["llama2_70b_lora"]
    assert result.card.scaling == test_factor and "tree.scaling" not in of_tree(org)[0]


def test_report_and_scores_agree(tree, tmp_path, capsys):
    """In the scaled score, the number of runs, and the samples to converge; with a failed run and a factor."""
    org = tree([llama_logs.log(index, status="aborted" if index == 3 else "success") for index in range(10)])
    place = org / "results" / "box" / "llama2_70b_lora"
    (place / "scaling.json").write_text('{"scaling_factor": 1.25}')
    assert cli.main(["scores", str(org), "--csv", str(tmp_path / "t.csv")]) == 0
    printed = capsys.readouterr().out.splitlines()[2].split()
    score, runs, failed = printed[4], " ".join(printed[5:8]), printed[8]
    assert (runs, failed) == ("10 of 10", "1")
    with open(tmp_path / "t_detailed.csv") as file:
        (row,) = csv.DictReader(file)
    outcome = check([org])
    card = page.card_of(place, outcome)
    assert f"{card.score:.4f}" == score and card.scaling == 1.25
    judged = rows_of_index.folders_by_path(outcome)[place.resolve()]
    row_of_index = rows_of_index.row(card, [], judged)
    assert row_of_index["to_converge"] == float(row["llama2_70b_lora:samples_to_converge"]) == 3456
    assert (row_of_index["runs"], row_of_index["needed"], row_of_index["failed"]) == (10, 10, 1)
    text = page.page([card], outcome)
    assert "1.2500, the factor of scaling.json" in text and "10 of 10, 1 failed" in text


@pytest.mark.parametrize(
    ("folder", "logged", "submitter", "fine"),
    [
        ("Inventec", "Inventec Corporation", "Inventec", True),
        ("Quanta_Cloud_Technology", "QCT", "Quanta Cloud Technology", True),
        ("Dell", "Dell Technologies", "Dell", True),
        ("IBM+CoreWeave+NVIDIA", "IBM+CoreWeave+NVIDIA", "CoreWeave + IBM + NVIDIA", True),
        ("Dell", "NVIDIA", "Dell", False),
        ("Dell", "Dell", "Supermicro", False),
    ],
)
def test_organizations_of_logs_folder_and_description(tree, folder, logged, submitter, fine):
    logs = [llama_logs.log(index, org=logged) for index in range(10)]
    findings, verdict = of_tree(tree(logs, folder, {"submitter": submitter}))
    assert verdict == "go" and ("tree.organization" in findings) is not fine


@pytest.mark.parametrize(
    ("name", "other", "one"),
    [
        ("Goo", "Google", False),
        ("Quanta", "Quanta Cloud", True),
        ("Supermicro", "Super Micro Computer, Inc.", True),
        ("HP", "HP Lab", False),
        ("Dell Inc.+NVIDIA", "NVIDIA + Dell", True),
        ("Dell+NVIDIA", "Dell+NVIDIA+Intel", False),
        ("Dell", "Dell+NVIDIA", True),
    ],
)
def test_a_name_begins_another_at_the_end_of_a_word(name, other, one):
    assert coherence.same_organization(name, other) is coherence.same_organization(other, name) is one


def test_the_same_advice_for_ten_logs_is_one(tree):
    org = tree([edited(llama_logs.log(index), "cache_clear", False) for index in range(10)])
    text = as_text(check([org]))
    assert text.count("cache_clear.false") == 1 and "and in 9 more logs" in text
    assert text.splitlines()[-1].startswith("go: 11 files checked, 0 errors, 10 pieces of advice")


def test_only_the_same_advice_of_other_logs_is_one(tmp_path):
    def about(name, line, severity="advice", actual="5"):
        path = str(tmp_path / name)
        return Finding("a.rule", severity, path, line, "", "A sentence.", "4", actual, "mend it")

    one = about("result_0.txt", 1)
    others = [
        about("result_0.txt", 2),
        about("result_1.txt", 1, "error"),
        about("result_1.txt", 1, actual="6"),
    ]
    same = about("result_1.txt", 7)
    firsts, alike = merged([one, *others, same])
    assert firsts == [one, *others] and alike[id(one)] == [same]
    assert not any(alike[id(other)] for other in others)


@pytest.mark.parametrize(("ruleset", "narrow"), [("5.1.0", False), ("6.0.0", False), ("6.1.0", True)])
def test_rcp_bypass_is_narrower_from_6_1_on(tmp_path, ruleset, narrow):
    judged = rcp.judge("llama2_70b_lora", ruleset, 8, [2000] * 10)
    assert judged.verdict == rcp.FAIL
    (finding,) = tree_runs._about_convergence(tmp_path, judged, "error", True, ruleset)
    assert finding.severity == "advice" and ("7 days" in finding.fix) is narrow


# ------------------------------------------------------------------------------------------------ report


def lanes_of(tmp_path, text):
    """{name: milliseconds} of the timeline of a log."""
    run = read_run(made_logs.write(tmp_path, text), "5.1.0")
    return {lane.name: lane.total_ms for lane in charts.timeline(run).lanes}


def test_a_count_of_all_samples_so_far_makes_no_gap(tmp_path):
    """Blocks that begin at 0 and 1,536 and stop at 1,536 and 1,920 are training, as in AMD's logs of v6.0."""
    records, at = made_logs.records_of(llama_logs.log()), 0
    for record in records:
        if record["key"] == "block_start":
            record["metadata"]["samples_count"] = at
        if record["key"] == "block_stop":
            at = at + 384 if at else 1536
            record["metadata"]["samples_count"] = at
    lanes = lanes_of(tmp_path, made_logs.lines(records))
    assert lanes["train"] == 6 * 60_000 and lanes["gap"] < 0.1 * lanes["train"]


def test_a_run_that_ends_inside_its_only_epoch_was_training(tmp_path):
    """As rgat of v5.1: one epoch_start, no block, no epoch_stop."""
    text = without(without(llama_logs.log(), '"block_start"', 5), '"block_stop"', 99)
    assert lanes_of(tmp_path, text)["train"] > 0
    assert lanes_of(tmp_path, llama_logs.log())["train"] == 6 * 60_000


@pytest.mark.parametrize("benchmark", ["gpt_oss_20b", "deepseekv3_671b", "llama31_8b"])
def test_the_loss_of_a_language_model_is_called_log_perplexity(tmp_path, benchmark):
    path = made_logs.write(tmp_path, made_logs.lines(made_logs.log("6.0.0", "closed", benchmark)))
    text = page.page([page.card_of(path, check([path], "6.0.0"), "6.0.0")])
    assert "Log perplexity" in text


def test_v6_0_has_published_scores_beside_a_result():
    rows = [row for row in published_scores() if row.round == "v6.0"]
    assert len(rows) == 20 and {"GigaComputing", "Inventec", "NVIDIA", "AMD"} <= {row.org for row in rows}
