"""Tests that green means green: what a tree may not hide, and that a verdict has one word everywhere."""

import json
import re

import pytest

from compliance.acceptance.answer import OPEN
from compliance.acceptance.tree_answer import answer_tree
from compliance.api import check
from compliance.log.check_log import check_log
from compliance.report import published
from compliance.submission import rcp, summary
from compliance.submission.scores import score_directory
from tests.compliance import llama_logs, made_logs
from timetotrain import cli

ROUND = "5.1.0"


@pytest.fixture
def tree(tmp_path):
    """Returns make(change, description, results), which writes a sound tree of ten runs but for what it changes."""

    def make(change=lambda index, text: text, description="", results="results", name="Other_Lab"):
        logs = (change(index, llama_logs.log(index)) for index in range(10))
        code = "implementations/nemo"
        return llama_logs.tree(tmp_path / name, logs, results=results, described=description, code=code)

    return make


def judged(org, ruleset=ROUND):
    """(verdict, {rule: finding})."""
    outcome = check([org], ruleset)
    return outcome.verdict.answer, {finding.rule: finding for finding in outcome.findings}


def in_one(number, old, new):
    """A change of one log."""
    return lambda index, text: text.replace(old, new) if index == number else text


def in_all(old, new):
    return lambda index, text: text.replace(old, new)


def test_a_sound_tree_is_a_go_without_a_finding(tree):
    assert judged(tree()) == ("go", {})


@pytest.mark.parametrize("broken", ["null", '"3456"', "[3456]", "true", "NaN", "Infinity", "-1", "1e14"])
def test_a_count_that_cannot_be_read_or_believed_refuses(tree, broken):
    org = tree(in_one(2, '"samples_count": 3456', f'"samples_count": {broken}'))
    verdict, findings = judged(org)
    assert verdict == "no-go" and "result_2.txt" in findings["tree.rcp"].found
    outcome = check([org], ROUND)
    (row,) = summary.systems(outcome)
    assert row.results["llama2_70b_lora"].card.score is None and answer_tree(outcome).answer == "no-go"


@pytest.mark.parametrize(
    ("results", "says"), [("Results", "Results/ has to be called results/"), ("runs", "is in no")]
)
def test_where_no_rule_of_submissions_applied_there_is_no_go(tree, results, says, capsys):
    org = tree(results=results)
    assert cli.main(["check", str(org), "--ruleset", ROUND]) == 2
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("not checked: 10 files") and says in last


def test_logs_beside_a_submission_are_not_covered_by_its_go(tree):
    org = tree()
    (org.parent / "box").mkdir()
    (org.parent / "box" / "result_0.txt").write_text(llama_logs.log(11))
    assert judged(org)[0] == "go" and judged(org.parent)[0] == "not checked"


def described(**changes):
    return json.dumps(llama_logs.description(**changes))


def test_logs_and_description_of_two_divisions_are_an_error_from_4_0_on(tree):
    org = tree(description=described(division="open"))
    assert judged(org)[0] == "no-go" and judged(org)[1]["tree.division"].severity == "error"
    assert judged(org, "3.1.0")[1]["tree.division"].severity == "advice"


def test_logs_in_a_cloud_of_a_system_on_premise(tree):
    org = tree(in_all('"onprem"', '"cloud"'))
    assert judged(org)[1]["tree.status"].found == "cloud"
    assert "tree.status" not in judged(tree(description=described(status="Preview"), name="b"))[1]


def test_rounds_without_rules_get_one_true_sentence(tmp_path, capsys):
    place = tmp_path / "Lab" / "results" / "box" / "resnet"
    place.mkdir(parents=True)
    (place / "result_0.txt").write_text(":::MLPv0.5.0 resnet 1541635702.1 (a.py:1) run_start\n")
    assert cli.main(["check", str(place / "result_0.txt")]) == 1
    assert "MLPerf Training v0.5" in capsys.readouterr().out
    log = made_logs.write(tmp_path, llama_logs.log(0, benchmark="cosmoflow"), "result_1.txt")
    (finding,) = check_log(str(log)).findings
    assert finding.rule == "not-checked" and "MLPerf HPC" in finding.message
    assert "--ruleset" not in finding.fix
    deep = tmp_path / "hpc" / "results" / "box" / "strong" / "cosmoflow"
    deep.mkdir(parents=True)
    (tmp_path / "hpc" / "systems").mkdir()
    log.rename(deep / "result_0.txt")
    for tree, family in (("Lab", "Training v0.5"), ("hpc", "HPC")):
        outcome = check([tmp_path / tree])
        sentence = f"The logs are of MLPerf {family}, whose rules this checker does not have"
        assert outcome.verdict == ("not checked", (sentence,)) and len(outcome.findings) == 1
        for verb in ("accept", "scores"):
            assert cli.main([verb, str(tmp_path / tree)]) == 2
            assert capsys.readouterr().err == f"error: {tmp_path / tree}: {sentence}\n"
    (deep.parent.parent / "llama2_70b_lora").symlink_to(deep)
    outcome = check([tmp_path / "hpc"])
    assert outcome.verdict.answer == "no-go" and "a symbolic link" in [one.found for one in outcome.findings]


def test_a_log_of_training_in_the_layout_of_hpc_stays_an_error(tree):
    place = tree() / "results" / "box"
    (place / "llama2_70b_lora").rename(place / "aside")
    (place / "weak").mkdir()
    (place / "aside").rename(place / "weak" / "llama")
    verdict, findings = judged(place.parent.parent)
    assert verdict == "no-go" and findings["not-checked"].severity == "error"


def test_a_score_that_the_rounds_table_has_otherwise_is_told(tree, monkeypatch, capsys):
    org = tree()
    card = score_directory(org / "results/box/llama2_70b_lora", ROUND)
    row = published.PublishedScore("v5.1", "Other_Lab", "box", "llama2_70b_lora", 8, card.score * 1.1, None)
    monkeypatch.setattr(published, "published_scores", lambda: (row,))
    monkeypatch.setattr(published, "distinct_scores", lambda: (row,))
    assert cli.main(["scores", str(org), "--ruleset", ROUND]) == 0
    assert f"the round's table has {row.minutes:.4f}" in capsys.readouterr().out
    assert cli.main(["report", str(org), "--ruleset", ROUND, "-o", str(org.parent / "r.html")]) == 0
    assert "round&#39;s table has" in (org.parent / "r.html").read_text()
    monkeypatch.setattr(published, "published_scores", tuple)
    assert summary.differs_from_published("Other_Lab", card) == []


def test_accept_knows_the_factor_of_scaling_json(tree):
    org = tree()
    (org / "results/box/llama2_70b_lora/scaling.json").write_text('{"scaling_factor": 1.25}')
    (one,) = answer_tree(check([org], ROUND)).answers
    assert one.factor == 1.25 and "1.2500, as scaling.json says" in one.advice


@pytest.mark.parametrize(
    ("key", "value", "noticed"),
    [("opt_learning_rate_training_steps", value, False) for value in (-1, [512, 768], [1e20])]
    + [("opt_learning_rate_training_steps", value, True) for value in (-2, [-1], "[8, ]")]
    + [("opt_learning_rate_decay_boundary_epochs", [], False), ("opt_base_learning_rate", [4e-4], True)]
    + [("global_batch_size", [], True), ("lora_rank", [16], True)],
)
def test_training_steps_may_have_no_limit_or_be_a_schedule(tree, key, value, noticed):
    old = llama_logs.HEADER.get(key)
    new = f'"{key}", "value": {json.dumps(value)}'
    steps = '"opt_learning_rate_training_steps", "value": 1024'
    change = in_all(steps if old is None else f'"{key}", "value": {old}', new)
    assert ("tree.value" in judged(tree(change))[1]) == noticed


def test_fewer_accelerators_than_ran_make_the_runs_too_fast(tree, monkeypatch):
    org = tree(description=described(accelerators_per_node="4", accelerator_model_name="Fast"))
    minutes = score_directory(org / "results/box/llama2_70b_lora", ROUND).score
    for each, noticed in ((4, False), (8, True)):
        monkeypatch.setattr(published, "best_of_accelerator", lambda *names, each=each: each * minutes * 0.99)
        assert ("tree.fast" in judged(org)[1]) == noticed


def test_the_last_line_is_the_worst_and_no_block_contradicts_it(tree, capsys):
    org = tree(description="\ufeff" + described())
    assert cli.main(["accept", str(org), "--ruleset", ROUND]) == 1
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("no-go: ") and "submit it" not in text and "accepted" not in text
    assert answer_tree(check([org], ROUND)).answers[0].answer == OPEN


def test_logs_that_count_epochs_where_the_reference_counts_samples():
    judged_ = rcp.judge("bert", "1.1.0", 448, [1.0] * 10)
    assert judged_.reason == "the logs count epochs, the reference counts samples"


@pytest.mark.parametrize("value", ["true", "Infinity", "1e9", "-1"])
def test_an_accuracy_that_cannot_be_meets_no_target(tmp_path, value):
    text = made_logs.lines(made_logs.log("2.0.0", "closed", "ssd"))
    text = re.sub(r'(?<="eval_accuracy", "value": )[\d.]+', value, text)
    assert not check_log(str(made_logs.write(tmp_path, text)), "2.0.0").passes
