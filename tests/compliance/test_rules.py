"""Tests the rule files: a closed vocabulary, the stock checker's keys, and the epochs of evaluations."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from common.errors import UserError
from compliance import explain
from compliance.described_rules import describe_key
from compliance.findings import texts
from compliance.hints import hint
from compliance.log import rules
from compliance.log.predicates import compile_predicate, describe
from compliance.log.rules import load
from compliance.log.whole_run import WholeRun
from compliance.rule_changes import as_text, changes
from timetotrain.cli import main

STOCK = Path(importlib.util.find_spec("mlperf_logging").submodule_search_locations[0]) / "compliance_checker"
OWN = ("tsm_kinetics", "mnist", "ptb")


def all_files():
    return [(ruleset, name) for ruleset in rules.RULESETS for name in sorted(rules.names(ruleset))]


@pytest.mark.parametrize(("ruleset", "name"), all_files())
def test_every_file_compiles_and_can_be_described(ruleset, name):
    compiled = rules.compiled(ruleset, name)
    assert compiled or rules.load(ruleset, name)["keys"] == {}
    assert rules.load(ruleset, name)["source"]
    for rule in compiled.values():
        assert rule.occurs in ("exactly_one", "at_least_one", "optional", {"at_least": 2})
        assert isinstance(describe_key(rule.spec), dict)


def stock_file(ruleset, name):
    stem = name.replace("any/", "").replace("/", "_")
    return STOCK / f"training_{ruleset}" / f"{stem}.yaml"


@pytest.mark.parametrize(
    ("ruleset", "name"), [(r, n) for r, n in all_files() if not n.endswith(OWN)], ids=str
)
def test_keys_and_their_numbers_are_the_stock_checkers(ruleset, name):
    entries = yaml.load(stock_file(ruleset, name).read_text(), Loader=yaml.BaseLoader) or []
    stock = {
        entry["KEY"]["NAME"]: entry["KEY"].get("REQ", "OPTIONAL").lower()
        for entry in entries
        if "KEY" in entry
    }
    ours = {
        key: rule.occurs if isinstance(rule.occurs, str) else f"at_least({rule.occurs['at_least']})"
        for key, rule in rules.compiled(ruleset, name).items()
    }
    removed = rules.load(ruleset, name).get("removes")
    if removed:  # The stock checker's file stands apart and repeats the common rules.
        common = {key: rule.occurs for key, rule in rules.compiled(ruleset, "common").items()}
        ours = {key: occurs for key, occurs in common.items() if key not in removed} | ours
    assert ours.keys() == stock.keys()
    pairs = {frozenset(keys) for keys in rules.load(ruleset, name).get("one_of", ())}
    for key, required in stock.items():
        if required.startswith("at_least_one_or("):
            assert frozenset((key, required.removeprefix("at_least_one_or(").rstrip(")"))) in pairs
            assert ours[key] == "optional"
        else:
            assert ours[key] == required, key


def test_the_stock_checker_has_no_rules_that_we_lack():
    for ruleset in rules.RULESETS:
        stock = {path.stem for path in (STOCK / f"training_{ruleset}").glob("*.yaml")}
        ours = {name.replace("any/", "").replace("/", "_") for name in rules.names(ruleset)}
        # v0.7's division files only include the benchmark's file; score.yaml prints a time.
        exceptions = {"0.6.0": {"score"}, "0.7.0": {"closed_common", "open_common"}}
        assert stock - ours == exceptions.get(ruleset, set())
        assert ours - stock == (
            {f"{one}_{name}" for one in rules.DIVISIONS for name in OWN} if ruleset == "0.7.0" else set()
        )


PREDICATES = [
    ({"in": [1, 50]}, [1, 50, 1.0, True], [2, "1", None, [1]]),
    ({"greater": 0}, [1, 0.1, True, float("inf")], [0, -1, "1", None, [], float("nan")]),
    ({"at_least": 0.759, "less": 1}, [0.759, 0.9], [0.7589, 1, 75.9, True]),
    ({"not_equal": ""}, ["x", 0, None, []], [""]),
    # The stock checker's tolerance of whole numbers is 1e-5 (is_integer).
    ({"multiple_of": 1}, [3, 3 + 0.9e-5, 3 - 0.9e-5], [3 + 1.1e-5, 3.005]),
    ({"multiple_of": 0.02}, [0.02, 0.12, 0, -0.04], [0.03, "x", None, float("inf"), 10**400]),
    ({"power_of_two_times": 1e-4}, [1e-4, 2e-4, 5e-5], [3e-4, 0, -1e-4, "x"]),
    ({"length": 2}, [[1, 2], "ab", {"a": 1, "b": 2}], [[1], 2, None]),
    ({"longer_than": 0}, [[1], "a"], [[], "", 3]),
    ({"is_boolean": True}, [True, False], [0, 1, "true", None]),
    ({"holds": ["BBOX", "SEGM"]}, [{"BBOX": 1, "SEGM": 2}], [{"BBOX": 1}, 3, None]),
    (
        {"first": {"multiple_of": 4}, "second": {"multiple_of": 5}},
        [[40, 50], [44, 55]],
        [[1, 50], [40], 40, {}],
    ),
    ({"fields": {"BBOX": {"at_least": 0.377}}}, [{"BBOX": 0.4}], [{"BBOX": 0.3}, {}, 0.4, {"BBOX": "1"}]),
]


@pytest.mark.parametrize(("spec", "good", "bad"), PREDICATES, ids=lambda value: str(value)[:40])
def test_predicates_hold_as_in_python_and_never_raise(spec, good, bad):
    holds = compile_predicate(spec)
    assert all(holds(value) for value in good)
    assert not any(holds(value) for value in bad)
    assert describe(spec)


def test_a_word_outside_the_vocabulary_is_refused():
    with pytest.raises(UserError, match="unknown word 'eval'"):
        compile_predicate({"eval": "1"})
    with pytest.raises(UserError, match="no rules"):
        rules.load("0.7.0", "../../x")


def test_every_rule_can_be_explained():
    for rule in explain.known_rules():
        assert explain.explain(rule).count("\n") >= 1
    assert "0.759" in explain.explain("eval_accuracy.target")
    with pytest.raises(UserError, match="did you mean submission_org"):
        explain.explain("submision_org")


@pytest.mark.parametrize(
    ("words", "otherwise", "end"),
    [
        (("zzz", "cloosed"), "", "did you mean closed?"),
        (("opn", "cloosed"), "", "did you mean open?"),
        (("zzz",), "", "known: closed, open"),
        (("zzz",), "see the list", "see the list"),
    ],
)
def test_the_first_word_near_a_known_name_is_the_hint(words, otherwise, end):
    assert hint(words, ("closed", "open"), otherwise) == end


def test_equal_rules_of_rounds_that_follow_one_another_are_one_line():
    text = explain.explain("gradient_accumulation_steps.occurs")
    assert "1.0.0-6.1.0" in text and "0.7.0" not in text


def test_what_changed_between_two_rounds_is_made_of_both_rounds_rules():
    later = {one.subject: one for one in changes("flux1", "5.1.0", "6.1.0")}
    assert later["config_filename"].old == "" and "exactly one" in later["config_filename"].text
    assert later["evaluation_frequency"].text == "value = eval_interval_samples; was 262144"
    points = later["batch sizes with a convergence point, and the least mean there"]
    assert "1024" in points.old and "1024 " not in points.new
    assert "mxfp6" in as_text("llama31_8b", "6.0.0", "6.1.0") and "seed" not in later
    assert "no rules" in as_text("qwen35_397b_grpo", "6.0.0", "6.1.0")
    with pytest.raises(UserError, match="is not earlier"):
        changes("flux1", "6.1.0", "6.1.0")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (["resnet", "--since=1.0"], "resnet closed: what 4.0.0 changed since 1.0.0"),
        (["ssd", "--since=v2.1.0"], "ssd closed: what 4.1.0 changed since 2.1.0"),
        (["resnet"], "resnet closed, ruleset 0.7.0"),
        (["llama31_8b", "--ruleset=6.0", "--since=5.1"], "llama31_8b closed: what 6.0.0 changed since 5.1.0"),
    ],
)
def test_rounds_have_short_names_and_changes_end_at_the_newest_round(capsys, words, start):
    assert main(["rules", *words]) == 0
    assert capsys.readouterr().out.startswith(start)


def test_every_wording_belongs_to_a_rule_that_can_be_explained():
    names = set(explain.known_rules()) | {"occurs", "value", "metadata", "order", "asked", "count"}
    for wording in texts()["wording"]:
        parts = wording.split(".")
        assert any(".".join(parts[:n]) in names for n in range(1, len(parts) + 1)), wording


@pytest.mark.parametrize("ruleset", rules.RULESETS)
def test_the_table_names_every_required_key(ruleset):
    for division in rules.DIVISIONS:
        for benchmark in rules.benchmarks(ruleset, division):
            name = rules.section_name(ruleset, division, benchmark)
            if name not in rules.names(ruleset):  # named by the round, without rules in the package
                with pytest.raises(UserError, match="has no rules for it"):
                    explain.table(ruleset, division, benchmark)
                continue
            text = explain.table(ruleset, division, benchmark)
            removed = rules.load(ruleset, name).get("removes", ())
            for key in {**rules.compiled(ruleset, "common"), **rules.compiled(ruleset, name)}:
                assert (f"  {key} " in text) == (key not in removed)
    name = rules.benchmarks(ruleset)[0]
    with pytest.raises(UserError, match=f"did you mean {name}"):
        explain.table(ruleset, "closed", name + "x")


@pytest.mark.parametrize(
    ("place", "epochs", "follows"),
    [
        # training_rules.adoc of 2020, "Quality measure": SSD, fixed at epochs 40, 50, 55, ..., 80.
        ("0.7.0/closed", (40,), True),
        ("0.7.0/closed", (40, 50, 55, 60, 65, 70, 75, 80, 85, 90), True),
        ("0.7.0/closed", (50, 55), False),
        ("0.7.0/closed", (40, 45, 50), False),
        ("0.7.0/closed", (5, 10, 40), False),
        ("0.7.0/closed", (40, 50, 55, 60, 65, 70, 75, 80, 90), False),
        ("0.7.0/closed", (40, 50, 55, 60, 65, 70, 75, 80, 83), False),
        ("0.7.0/closed", (1e11,), False),
        # What Google's and NVIDIA's logs of round v0.6 say, and 120,000 images counted from 0.
        ("0.6.0/any", (33, 43, 49, 54, 59, 65), True),
        ("0.6.0/any", (33, 44, 49, 54, 60, 65, 71, 76, 81), True),
        ("0.6.0/any", (32, 43, 48, 53), True),
        ("0.6.0/any", (32, 37, 43), False),
        ("0.6.0/any", (33, 49), False),
    ],
)
def test_evaluations_at_epochs_that_the_rules_or_the_reference_list(place, epochs, follows):
    """A log that evaluates after these epochs, judged alone."""
    ruleset, _, folder = place.partition("/")
    whole_run = WholeRun(lambda rule, *_, **__: rule)
    whole_run.epochs = list(epochs)
    assert ("eval.schedule" in set(whole_run.end(load(ruleset, f"{folder}/ssd"), None))) == (not follows)
