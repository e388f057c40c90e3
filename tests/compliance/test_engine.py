"""Tests the streaming engine: the stock checker's semantics, additional findings, and near misses."""

import pytest

from compliance.log.check_log import check_log
from compliance.log.engine import StreamChecker
from compliance.log.logs import parse_line
from compliance.log.rules import compiled
from lab.bench.harness import stock_checker
from tests.compliance import llama_logs, result_logs
from tests.compliance.made_logs import lines, records_of, seconds, v06, with_accuracy
from tests.compliance.test_check import rules_of

BENCHMARKS = tuple(result_logs.CLOSED)
LATER = "check with the --ruleset of the round; the benchmark belongs to 1.0.0 to 4.1.0"


def entries(benchmark="resnet", **options):
    return records_of(result_logs.log(benchmark, **options))


def findings_of(records, ruleset="0.7.0", **options):
    """What the checker says of records, or of the text of a log."""
    checker = StreamChecker(ruleset, **options)
    text = records if isinstance(records, str) else lines(records)
    findings = [
        finding
        for number, line in enumerate(text.splitlines(), 1)
        for finding in checker.feed(parse_line(line, number))
    ]
    return findings + checker.finish()


def errors(records, ruleset="0.7.0", **options):
    return [finding for finding in findings_of(records, ruleset, **options) if finding.severity == "error"]


def change(records, which, **fields):
    return [{**record, **fields} if record["key"] == which else record for record in records]


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_proper_log_has_no_finding(benchmark):
    assert findings_of(entries(benchmark)) == []


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_a_failed_run_misses_the_target_and_nothing_else(benchmark):
    assert rules_of(errors(entries(benchmark, status="aborted"))) == ["eval_accuracy.target"]


def test_the_benchmark_may_be_named_last():
    records = entries()
    header = ("submission_benchmark", "submission_division", "opt_name")
    late = [r for r in records if r["key"] not in header] + [r for r in records if r["key"] in header]
    assert errors(late) == []
    wrong = change(late, "lars_opt_end_learning_rate", value=0.5)
    assert rules_of(errors(wrong)) == ["lars_opt_end_learning_rate.value"]


def test_a_finding_comes_with_the_record_once_the_benchmark_is_known():
    checker = StreamChecker("0.7.0")
    for number, record in enumerate(change(entries(), "opt_name", value="adamw"), 1):
        findings = checker.feed(parse_line(lines([record]), number))
        if record["key"] == "opt_name":
            break
    (finding,) = findings
    assert (finding.rule, finding.line, finding.found) == ("opt_name.value", number, "'adamw'")
    assert '"opt_name"' in finding.text


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("submission_benchmark", "mask", "did you mean maskrcnn?"),
        ("submission_benchmark", "unet3d", LATER),
        ("submission_division", "cloosed", "did you mean closed?"),
        ("submission_status", "on-prem", "did you mean onprem?"),
        ("opt_name", "LARS", "did you mean lars?"),
    ],
)
def test_near_misses_of_values(key, value, fix):
    assert fix in [finding.fix for finding in errors(change(entries(), key, value=value))]


@pytest.mark.parametrize("value", [None, "0.8", [0.8], {"BBOX": 1}])
def test_an_accuracy_that_is_no_number_is_an_error(value):
    records = entries()
    index = next(i for i, r in enumerate(records) if r["key"] == "eval_accuracy")
    records[index] = {**records[index], "value": value}
    assert rules_of(errors(records)) == ["eval_accuracy.target"]


def test_berts_target_depends_on_the_batch():
    def bert(batch, accuracy, late=False):
        keys = [key for key, rule in compiled("0.7.0", "closed/bert").items() if rule.once]
        keys.remove("global_batch_size")
        records = change(entries(), "submission_benchmark", value="bert")
        head, tail = records[:6], records[6:]
        head += [{**records[0], "key": key, "value": 1} for key in keys]
        gbs = [{**records[0], "key": "global_batch_size", "value": batch}]
        tail = [r for r in tail if r["key"] != "global_batch_size"]
        tail = [{**r, "value": accuracy} if r["key"] == "eval_accuracy" else r for r in tail]
        return errors([*head, *tail, *gbs] if late else [*head, *gbs, *tail])

    assert bert(448, 0.712) == []
    assert rules_of(bert(448, 0.709)) == ["eval_accuracy.target", "run_stop.status"]
    assert bert(8192, 0.709) == []
    assert rules_of(bert("many", 0.9)) == ["eval_accuracy.target", "run_stop.status"]
    assert "eval_accuracy.target" in rules_of(bert(448, 0.9, late=True))


def test_ssd_boundaries_are_both_checked():
    for value, good in (([40, 50], True), ([44, 55], True), ([1, 50], False), ([40, 1], False), (50, False)):
        records = change(entries("ssd"), "opt_learning_rate_decay_boundary_epochs", value=value)
        assert (errors(records) == []) is good


# ------------------------------------------------------------------------------- the run as a whole


def late(epoch):
    """The parts of a log whose target is met behind run_stop, 5 s later.

    Returns its records, the places of the result that met the target and of run_stop, the log with a result below the
    target there, and the result of `epoch` behind run_stop.
    """
    records = entries()
    index = max(i for i, r in enumerate(records) if r["key"] == "eval_accuracy")
    stop = next(i for i, r in enumerate(records) if r["key"] == "run_stop")
    below = [*records[:index], {**records[index], "value": 0.7}, *records[index + 1 : stop + 1]]
    moved = {**records[index], "time_ms": records[stop]["time_ms"] + 5000}
    moved["metadata"] = {**moved["metadata"], "epoch_num": epoch}
    return records, index, stop, below, moved


def test_an_evaluation_of_earlier_work_may_be_reported_after_run_stop():
    records, index, stop, _, moved = late(40)
    assert errors([*records[:index], *records[index + 1 : stop + 1], moved]) == []


def test_work_after_run_stop_does_not_meet_the_target():
    *_, below, moved = late(44)
    assert "run_stop.target-after" in rules_of(errors([*below, moved]))
    again = {**moved, "metadata": {**moved["metadata"], "epoch_num": 40}}
    assert "run_stop.target-after" in rules_of(errors([*below, again]))
    start = {**moved, "key": "eval_start", "value": None}
    assert "run_stop.target-after" in rules_of(errors([*below, start, moved]))


def test_the_first_run_stop_counts():
    """Its time is the score's, so what is trained between it and a second one comes too late."""
    records, _, stop, below, moved = late(44)
    again = {**records[stop], "time_ms": moved["time_ms"] + 1000}
    assert "run_stop.target-after" in rules_of(errors([*below, moved, again]))


def test_an_epoch_reported_a_second_time_after_run_stop_does_not_meet_the_target():
    records, index, _, below, moved = late(40)
    announced = {**records[index], "key": "eval_start", "value": None}  # a second one, begun before run_stop
    log = [*below[: index + 1], announced, *below[index + 1 :], moved]
    assert "run_stop.target-after" in rules_of(errors(log))


@pytest.mark.parametrize("key", ["submission_division", "submission_benchmark", "opt_name"])
@pytest.mark.parametrize(
    "value", ["../" * 20 + "proc/self/cwd/evil", "nonsense/..", "", None, ["closed"], 7, "common"]
)
def test_a_value_that_selects_the_rules_is_one_that_they_name(key, value):
    """The stock checker runs code of a file that such a value names, or enqueues its own rules for ever."""
    assert errors(change(entries(), key, value=value))


@pytest.mark.parametrize(
    ("bad", "rule"),
    [(':::MLLOG {"key": "eval_accuracy"', "line-json"), (":::MLLOG " + "[" * 100_000, "line-json"),
     (lines(change(entries()[-4:-3], "eval_accuracy", value="x")), "eval_accuracy.target")],
)  # fmt: skip
def test_a_log_on_which_the_stock_checker_ends_with_an_exception_is_reported(tmp_path, bad, rule):
    (tmp_path / "log.txt").write_text(lines(entries()) + bad)
    assert stock_checker.verdict(tmp_path / "log.txt", "0.7.0")[0] in ("crash", "fail")
    assert rule in {finding.rule for finding in check_log(str(tmp_path / "log.txt"), "0.7.0").findings}


# ---------------------------------------------------------------------------------------- round v0.6


def both(lines, tmp_path):
    (tmp_path / "log.txt").write_text(seconds(lines))
    theirs, _ = stock_checker.verdict(tmp_path / "log.txt", "0.6.0")
    return theirs == "pass", errors(seconds(lines), "0.6.0") == []


def test_the_order_of_events_of_round_six_is_the_stock_checkers(tmp_path):
    lines = v06()
    assert both(lines, tmp_path) == (True, True)
    events = len(lines) - 11
    for index in range(events, len(lines)):
        for other in range(events, len(lines) + 1):
            moved = lines[:index] + lines[index + 1 :]
            moved.insert(other, lines[index])
            theirs, ours = both(moved, tmp_path)
            assert theirs == ours, (lines[index][0], other)
        doubled = lines[:index] + [lines[index]] * 2 + lines[index + 1 :]
        theirs, ours = both(doubled, tmp_path)
        assert theirs == ours, lines[index][0]


def test_round_six_wants_its_optimizers_keys_exactly_then(tmp_path):
    resnet = {"submission_benchmark": "resnet", "opt_learning_rate_warmup_epochs": 5, "model_bn_span": 8}
    names = ("learning_rate_decay_steps", "learning_rate_decay_poly_power", "weight_decay")
    lars = {**dict.fromkeys((f"lars_opt_{name}" for name in names), 1), "lars_epsilon": 0}
    sgd = {"opt_learning_rate_decay_boundary_epochs": [30]}

    def log(**keys):
        return with_accuracy(0.8, v06(**resnet, **keys))

    for name, keys in (("lars", lars), ("sgd", sgd), ("sgd", lars | sgd)):
        theirs, ours = both(log(opt_name=name, **keys), tmp_path)
        assert theirs == ours == (len(keys) != 5)
    assert rules_of(errors(seconds(log(opt_name="lars")), "0.6.0")) == sorted(f"{key}.occurs" for key in lars)


def test_success_below_the_target_is_an_error_in_round_six_too(tmp_path):
    for value, passes in ((23.9, False), ("24.9", True)):
        assert both(with_accuracy(value, v06()), tmp_path) == (True, passes)


@pytest.mark.parametrize("key", ["init_start", "run_stop"])
@pytest.mark.parametrize("time", [float("nan"), float("inf"), True])
def test_a_time_that_is_not_a_number_is_an_error(key, time):
    assert "line-field" in rules_of(errors(change(entries(), key, time_ms=time)))


def test_of_a_loss_the_lowest_is_nearest_the_target_and_none_is_a_percentage():
    records = records_of(llama_logs.log(status="aborted"))
    losses = iter((1.3, 0.94, 1.2, 0.97, *[1.1] * 5))
    for record in records:
        if record["key"] == "eval_accuracy":
            record["value"] = next(losses)
    (missed,) = (one for one in findings_of(records, "4.0.0") if one.rule.startswith("eval_accuracy"))
    assert (missed.rule, missed.found) == ("eval_accuracy.target", "0.94")
