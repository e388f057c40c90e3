"""Tests `accept`: prediction, both prunings, signs of selection, answers for trees complete and under way."""

import itertools
import json
import math
import os
import random
import re

import pytest

from compliance import check
from compliance.__main__ import main
from compliance.accept import hull, predict, selection
from compliance.accept import watch as watching
from compliance.accept.answer import ACCEPTED, OPEN, REFUSED
from compliance.accept.predict import Question
from compliance.accept.watch import Tail, Watch, follow
from compliance.accept.whole import whole
from compliance.log.rounds import find
from compliance.submission import rcp
from compliance.submission.facts import Facts, read_facts
from lab.bench import accept_calibration
from tests.compliance import llama_logs

ROUND = "5.0.0"
# The reference of llama2_70b_lora at batch size 8.
POINT, _ = rcp.find("llama2_70b_lora", ROUND, 8, rcp.pruned("llama2_70b_lora", ROUND))


# ------------------------------------------------------------------------------------------------ both prunings


def naive_hull(points):
    """The points that no line between two others passes below."""
    return [
        point
        for point in points
        if not any(
            low.batch < point.batch < high.batch
            and point.mean
            > low.mean + (high.mean - low.mean) * (point.batch - low.batch) / (high.batch - low.batch)
            for low, high in itertools.combinations(points, 2)
        )
    ]


def test_the_hull_is_what_the_written_rule_says():
    draw = random.Random(0)
    for _ in range(200):
        batches = sorted(draw.sample(range(1, 100), draw.randint(1, 9)))
        points = [rcp.Point(batch, draw.uniform(1, 2), 0.1, 1.0) for batch in batches]
        assert list(hull.lower_hull(points)) == naive_hull(points)


def test_the_prunings_differ_in_24_of_90_tables():
    tables = [(name, ruleset) for name, entry in rcp.reference().items() for ruleset in entry["rounds"]]
    tables = [table for table in tables if rcp.points(*table)]
    different = [table for table in tables if hull.pruned_by_rule_alone(*table)]
    assert (len(different), len(tables)) == (24, 90)


@pytest.mark.parametrize(
    ("benchmark", "ruleset", "batch", "stock", "rule"),
    [
        ("llama2_70b_lora", "4.0.0", 16, 3733, 3478),
        ("llama31_405b", "5.0.0", 2304, 276_925.5, 317_444.4),
        ("bert", "2.0.0", 3072, 2_643_732, 2_594_782),
    ],
)
def test_three_tables_with_the_least_mean_by_both(benchmark, ruleset, batch, stock, rule):
    extra = [point.batch for point in hull.pruned_by_rule_alone(benchmark, ruleset)]
    assert batch in extra
    for kept, least in ((rcp.pruned(benchmark, ruleset), stock), (hull.written(benchmark, ruleset), rule)):
        point, _ = rcp.find(benchmark, ruleset, batch, kept)
        assert point.least == pytest.approx(least, abs=0.5)


def test_a_result_between_the_prunings_gets_two_factors():
    values = [3900.0] * 10
    judged = rcp.judge("llama2_70b_lora", ROUND, 16, values)
    both = hull.both("llama2_70b_lora", ROUND, judged, values)
    assert both.stock == judged and judged.scaling == pytest.approx(4032 / 3900)
    assert both.rule.verdict == rcp.PASS and both.rule.scaling == 1.0
    assert f"factor {judged.scaling:.4f}" in both.note and "factor 1.0000" in both.note
    same = rcp.judge("llama2_70b_lora", ROUND, 8, [3000.0] * 10)
    assert hull.both("llama2_70b_lora", ROUND, same, [3000.0] * 10).note == ""


# ------------------------------------------------------------------------------------------------ prediction


def asked(*known, mean=100.0, stdev=5.0, least=97.0, runs=10, **more):
    return Question(mean, stdev, least, runs, 1, known, **more)


def weighted(question, draws=15_000):
    """The model's probability in its naive form: draws from the prior, weighted by the known runs' likelihood."""
    draw, total, passed = random.Random(2), 0.0, 0.0
    known = list(question.known)
    fails = predict.FAILS / (predict.RUNS + len(known))
    for _ in range(draws):
        sigma = question.stdev * math.sqrt(predict.NU / 2 / draw.gammavariate(predict.NU / 2, 1))
        near, far = (predict.NEAR_CENTRE, predict.NEAR_TAU), (predict.FAR_CENTRE, predict.FAR_TAU)
        mu = question.mean * draw.gauss(*(far if draw.random() < predict.FAR else near))
        weight = math.prod(math.exp(-(((one - mu) / sigma) ** 2) / 2) / sigma for one in known)
        future = [draw.gauss(mu, sigma) for _ in range(question.runs - len(known))]
        future = [math.inf if draw.random() < fails else one for one in future]
        values = sorted([*known, *future])[1:-1]
        total += weight
        passed += weight * (values[-1] < math.inf and sum(values) / len(values) >= question.least)
    return passed / total


@pytest.mark.parametrize("known", [(98.0,), (96.0, 99.0, 95.0), (93.0, 97.0, 96.0, 95.0, 99.0, 97.0)])
def test_the_probability_is_the_models(known):
    question = asked(*known)
    assert predict.predict(question).passes == pytest.approx(weighted(question), abs=0.06)


def test_more_samples_make_it_more_probable_and_the_factor_smaller():
    found = [predict.predict(asked(level, level + 4, level - 4)) for level in (90, 94, 97, 100, 106)]
    chances = [one.passes for one in found]
    assert chances == sorted(chances) and chances[0] < 0.3 and chances[-1] > 0.97
    assert found[1].factor > found[-1].factor >= 1 and found[0].low < found[0].high
    assert predict.predict(asked(100.0)) == predict.predict(asked(100.0))


def test_all_runs_leave_no_doubt():
    assert predict.predict(asked(*[98.0] * 10))[:3] == (1.0, 1.0, pytest.approx(100 / 98))
    assert predict.predict(asked(*[96.0] * 10)).passes == 0.0
    assert predict.predict(asked(*[120.0] * 10))[:3] == (1.0, 0.0, 1.0)


def test_failed_runs_count():
    assert predict.predict(asked(100.0, None)).passes < predict.predict(asked(100.0, 100.0)).passes - 0.05
    assert predict.predict(asked(100.0, None, None)).passes == 0.0
    assert predict.predict(asked(100.0, None, 100.0, spoiled=1)).passes == 0.0


def test_a_drawn_run_ends_at_an_evaluation():
    futures = predict._futures(asked(100.0, step=8.0), 9, 50)
    assert {one % 8 for future in futures for one in future if one < math.inf} == {100 % 8}


# ---------------------------------------------------------------------------------------- signs of selection


def runs(count=8, minutes=10.0, pause=1.0, values=None, seeds=None, numbers=None, curves=None):
    """Facts of runs that follow each other; each argument but the first three has an entry for each run."""
    draw, clock, found = random.Random(1), 0.0, []
    for index in range(count):
        facts = Facts(f"/x/result_{index if numbers is None else numbers[index]}.txt")
        length = minutes[index] if isinstance(minutes, list) else minutes + draw.random()
        facts.started, facts.stopped = clock, clock + length * 60_000
        clock = facts.stopped + (pause[index] if isinstance(pause, list) else pause) * 60_000
        facts.to_converge = POINT.mean + POINT.stdev * draw.gauss(0.3, 1) if values is None else values[index]
        facts.seeds = [("a.py", "1", draw.randint(0, 10**9) if seeds is None else seeds[index])]
        curve = [draw.random() for _ in range(4)] if curves is None else curves[index]
        facts.evaluations.extend(enumerate(map(str, curve)))
        found.append(facts)
    return found


def kinds(facts):
    return {sign.kind for sign in selection.signs(facts, POINT, 1)}


def test_ordinary_runs_show_no_sign():
    assert kinds(runs()) == set() and selection.could(runs(), POINT) == {*selection.KINDS} - {"overlap"}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("number-gap", {"numbers": [0, 1, 2, 4, 5, 6, 7, 9]}),
        ("number-gap", {"numbers": [3, 4, 5, 6, 7, 8, 9, 10]}),
        ("number-order", {"numbers": [1, 0, 2, 3, 4, 5, 6, 7]}),
        ("result-order", {"minutes": [10.0 + index for index in range(8)]}),
        ("seed-gap", {"seeds": [1, 2, 3, 5, 6, 7, 9, 10]}),
        ("seed-order", {"seeds": [2, 1, 3, 4, 5, 6, 8, 7]}),
        ("time-gap", {"pause": [1.0, 1.0, 30.0, 1.0, 1.0, 1.0, 1.0, 1.0]}),
        ("small-spread", {"values": [POINT.mean + index for index in range(8)]}),
        ("fast", {"values": [POINT.least + (40 if index % 2 else -30) * 5 for index in range(8)]}),
        (
            "same-curve",
            {"curves": [[0.1, 0.2, 0.3 if index in (2, 5) else 0.3 + index] for index in range(8)]},
        ),
    ],
)
def test_a_sign_is_seen_alone(kind, changes):
    found = list(selection.signs(runs(**changes), POINT, 1))
    assert [sign.kind for sign in found] == [kind]
    assert selection.KINDS[kind] in found[0].line and "published folders show this" in found[0].line


def test_a_huge_number_in_a_name_takes_no_memory():
    (sign,) = (one for one in selection.signs(runs(numbers=[*range(7), 999_999_999]), POINT, 1))
    assert sign.seen == "7, 8, 9, 10, 11, 12, 13, 14, ... missing up to 999999999"


def test_runs_of_a_system_that_overlap():
    first, second = runs(3), runs(3)
    (sign,) = selection.overlaps([first, second])
    assert sign.kind == "overlap" and sign.seen.startswith("3 times")
    for one in second:
        one.started, one.stopped = one.started + 1e9, one.stopped + 1e9
    assert list(selection.overlaps([first, second])) == []


@pytest.mark.parametrize(
    ("degrees", "point"), [(1, 0.00015709), (4, 0.29711), (9, 2.0879), (29, 14.2565), (39, 21.4262)]
)
def test_the_points_of_chi_squared_are_those_of_tables(degrees, point):
    """The points are scipy.stats.chi2.ppf(0.01, degrees)."""
    assert selection.chi_squared_low(degrees) == pytest.approx(point, rel=1e-4)


# ----------------------------------------------------------------------------------------------------- trees


def tree(tmp_path, logs):
    org = tmp_path / "training_results_v5.0" / "Other_Lab"
    folder = org / "results" / "1xbox" / "llama2_70b_lora"
    folder.mkdir(parents=True)
    (org / "systems").mkdir()
    (org / "systems" / "1xbox.json").write_text(json.dumps(llama_logs.description()))
    for index, text in enumerate(logs):
        (folder / f"result_{index}.txt").write_text(text)
    return org


NOW = 1_700_100_000  # soon after the runs of the made logs


def judged(org, now=NOW):
    for path in org.rglob("result_*.txt"):
        os.utime(path, (NOW, NOW))
    return whole(check([org]), now)


def test_a_complete_tree_is_accepted(tmp_path, capsys):
    org = tree(tmp_path, map(llama_logs.log, range(10)))
    found = judged(org)
    assert (found.answer, found.probability) == (ACCEPTED, 1.0)
    assert main(["accept", str(org)]) == 0 and capsys.readouterr().out.endswith("\naccepted\n")
    assert main(["check", str(org)]) == 0 and "\naccept: accepted\n" in capsys.readouterr().out


def test_some_runs_leave_it_open_with_a_probability(tmp_path, capsys):
    org = tree(tmp_path, map(llama_logs.log, range(4)))
    found = judged(org)
    (one,) = found.answers
    assert found.answer == OPEN and 0.9 < found.probability < 1 and one.runs == 4
    assert one.advice == "go on: 6 more runs"
    assert main(["accept", str(org), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["probability"] == found.probability and content["folders"][0]["needed"] == 10


def fast(text):
    """A log that converges at a tenth of the samples."""
    return text.replace('"samples_count": 3456', '"samples_count": 346')


def test_runs_that_are_too_fast_are_told_to_stop(tmp_path):
    found = judged(tree(tmp_path, [fast(llama_logs.log(index)) for index in range(6)]))
    assert found.answer == OPEN and found.probability < 0.01
    assert found.answers[0].advice.startswith("stop: one more run cannot help")
    done = judged(tree(tmp_path / "b", [fast(llama_logs.log(index)) for index in range(10)]))
    assert done.answer == REFUSED and "converges faster" in done.reasons[0]


def test_one_failed_run_is_dropped_and_two_refuse_whatever_follows(tmp_path):
    logs = [llama_logs.log(index) for index in range(5)]
    failed = llama_logs.log(8, status="aborted")
    one = judged(tree(tmp_path, [*logs, failed]))
    assert one.answer == OPEN and 0.5 < one.probability < judged(tree(tmp_path / "b", logs)).probability
    two = judged(tree(tmp_path / "c", [*logs, failed, llama_logs.log(9, status="aborted")]))
    assert two.answer == REFUSED and "2 runs count for no score" in two.reasons[0]


def test_more_runs_than_a_score_takes_and_other_errors_refuse(tmp_path):
    assert judged(tree(tmp_path, map(llama_logs.log, range(11)))).answer == REFUSED
    org = tree(tmp_path / "b", map(llama_logs.log, range(10)))
    (org / "systems" / "1xbox.json").unlink()
    found = judged(org)
    assert found.answer == REFUSED and any(
        "1xbox" in reason or "description" in reason for reason in found.reasons
    ), found.reasons


def test_a_batch_size_without_a_reference_is_open(tmp_path):
    big = [
        llama_logs.log(i).replace('"global_batch_size", "value": 8', '"global_batch_size", "value": 4096')
        for i in range(3)
    ]
    found = judged(tree(tmp_path, big))
    assert found.answer == OPEN and found.probability is None and "no reference" in found.reasons[0]


@pytest.mark.parametrize("odd", ["1e200", "1" + 400 * "0", "-5", "1e-320", "1e15"])
def test_absurd_counts_and_times_give_an_answer(tmp_path, odd, capsys):
    texts = [llama_logs.log(index) for index in range(4)]
    changed = {
        "one": [text.replace('"samples_count": 3456', f'"samples_count": {odd}') for text in texts[:1]]
        + texts[1:],
        "all": [re.sub('"samples_count": [1-9][0-9]*', f'"samples_count": {odd}', text) for text in texts],
        "steps": [re.sub('"samples_count": 0', f'"samples_count": {odd}', text) for text in texts],
        "times": [
            re.sub(r'"time_ms": (\d+)(?=.*"eval_accuracy")', f'"time_ms": {odd}', text) for text in texts
        ],
        "batch": [
            text.replace('"global_batch_size", "value": 8', f'"global_batch_size", "value": {odd}')
            for text in texts
        ],
    }
    for name, logs in changed.items():
        assert logs != texts or name == "steps"
        org = tree(tmp_path / name, logs)
        assert judged(org).answer in (OPEN, REFUSED)
        for path in org.rglob("result_*.txt"):
            facts = read_facts(str(path), ROUND)
            assert all(0 <= at < 1e15 for at, _ in facts.evaluations)
            assert facts.to_converge is None or 0 <= facts.to_converge < 1e15


def test_evaluations_at_nearly_one_place_tell_no_step():
    near, far = Facts("a"), Facts("b")
    near.evaluations.extend([(0.0, "1"), (1e-320, "1"), (3072.0, "1"), (3072.0 + 1e-9, "1")])
    far.evaluations.extend([(384.0, "1"), (768.0, "1")])
    assert predict.step_of([near]) == 0 and predict.step_of([far]) == 384
    tiny = predict.predict(asked(99.0, 101.0, step=1e-320))
    assert tiny == predict.predict(asked(99.0, 101.0))


def growing(text, part):
    lines = text.splitlines(keepends=True)
    return "".join(lines[: int(len(lines) * part)])


def test_a_log_that_grows_is_not_yet_wrong(tmp_path):
    logs = [llama_logs.log(index) for index in range(4)]
    org = tree(tmp_path, [*logs, growing(llama_logs.log(4), 0.5)])
    found = judged(org)
    assert found.answer == OPEN and found.answers[0].runs == 4 and found.probability > 0.9
    stale = judged(org, NOW + 7200)  # nobody writes to it any more: the run broke off
    assert stale.answers[0].runs == 5 and stale.probability < found.probability
    copied = whole(check([org]), NOW + 90 * 86_400, stale_minutes=1e6)
    assert copied.answers[0].runs == 5


def test_what_is_wrong_already_counts_before_the_run_ends(tmp_path):
    bad = llama_logs.log(4).replace('"lora_rank", "value": 16', '"lora_rank", "value": 99')
    bad = [growing(bad, 0.5), growing(bad, 0.6)]
    found = judged(tree(tmp_path, [llama_logs.log(0), *bad]))
    assert found.answer == REFUSED and "lora_rank" in found.reasons[0]


# ----------------------------------------------------------------------------------------------------- watch


def test_watch_reads_what_is_new_and_says_what_changes(tmp_path):
    org = tree(tmp_path, [llama_logs.log(0)])
    folder = org / "results/1xbox/llama2_70b_lora"
    watch = Watch(org, None, 60, lambda: NOW)
    assert "1xbox/llama2_70b_lora: open, 1 of 10 runs" in watch.poll()[0]
    assert watch.poll() == [] and not watch.done
    text = llama_logs.log(1).replace('"lora_rank", "value": 16', '"lora_rank", "value": 99')
    lines = text.splitlines(keepends=True)
    with (folder / "result_1.txt").open("a") as file:
        said = []
        for line in lines:
            file.write(line[: len(line) // 2])  # a poll may see half a line
            file.flush()
            said += watch.poll()
            file.write(line[len(line) // 2 :])
            file.flush()
            said += watch.poll()
    wrong = next(at for at, line in enumerate(said) if "lora_rank.value" in line)
    number = 1 + next(at for at, line in enumerate(lines) if "lora_rank" in line)
    assert f"result_1.txt line {number}:" in said[wrong]
    ended = next(at for at, line in enumerate(said) if "2 of 10 runs" in line)
    assert wrong < ended and sum("lora_rank.value)" in line for line in said) == 1


def test_watch_agrees_with_accept_and_ends_with_the_last_run(tmp_path):
    org = tree(tmp_path, map(llama_logs.log, range(7)))
    watch = Watch(org, None, 60, lambda: NOW)
    watch.poll()
    (live,), (once,) = watch.answers.values(), judged(org).answers
    assert live == once._replace(evidence=live.evidence)
    for index in range(7, 10):
        path = org / f"results/1xbox/llama2_70b_lora/result_{index}.txt"
        path.write_text(llama_logs.log(index))
    said = []
    assert follow(org, None, 0.01, 60, said.append) == ACCEPTED and said[-1].endswith("accepted")


def test_a_run_that_goes_on_after_an_hour_has_not_ended(tmp_path):
    text = llama_logs.log(0)
    org, times = tree(tmp_path, [growing(text, 0.5)]), iter([NOW, NOW + 7200, NOW + 7200])
    path = org / "results/1xbox/llama2_70b_lora/result_0.txt"
    os.utime(path, (NOW, NOW))
    watch = Watch(org, None, 60, lambda: next(times))
    assert "0 of 10 runs" in watch.poll()[0]
    assert "1 of 10 runs" in watch.poll()[-3] and next(iter(watch.answers.values())).probability < 0.95
    path.write_text(text)
    assert "1 of 10 runs" in watch.poll()[-3] and next(iter(watch.answers.values())).probability > 0.95


def test_a_log_without_a_round_in_its_folder_is_watched_from_run_start_on(tmp_path):
    folder = tmp_path / "Lab" / "results" / "1xbox" / "llama2_70b_lora"
    folder.mkdir(parents=True)
    path = folder / "result_0.txt"
    text = llama_logs.log(0)
    start = text.index('"run_start"')
    path.write_text(text[: text.rindex("\n", 0, start) + 1])
    watch = Watch(tmp_path / "Lab", None, 60, lambda: NOW)
    assert watch.poll() == [] and not watch.answers
    path.write_text(text)
    assert any("1 of 10 runs" in line for line in watch.poll())


def test_watch_splits_lines_as_check_does(tmp_path):
    text = llama_logs.log(0)
    at = text.index("\n", text.index('"run_start"'))
    bar = text[:at] + "\r 50%|#####     |" + text[at:]
    long = bar.replace("\n", "\n" + "x" * (9 << 20) + "\n", 1)
    too_long = bar.replace("\n", "\n" + "x" * (40 << 20) + ":::MLL\n", 1)
    for folder, content, answer in (("a", bar, 0), ("b", long, 0), ("c", too_long, 1)):
        watch = Watch(tree(tmp_path / folder, [content]), None, 60, lambda: NOW)
        said = watch.poll()
        assert "1 of 10 runs" in "".join(said)
        assert [line for line in said if "(line-" in line] == said[:answer]
    path = tmp_path / "d.txt"
    lines = llama_logs.log(0).splitlines()
    wide = lines[3].replace('"metadata": {', '"metadata": {"x": "' + "y" * (9 << 20) + '", ', 1)
    path.write_text("\n".join([*lines[:3], wide, *lines[4:]]) + "\n")
    tail = Tail(path, "5.0.0")
    tail.poll(NOW, 60)
    assert tail.ended and not tail.errors


def test_a_log_without_run_start_is_held_to_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MAX_HELD", 20)
    path = tmp_path / "result_0.txt"
    lines = [line for line in llama_logs.log(0).splitlines() if '"run_start"' not in line]
    path.write_text("\n".join(lines[:-1]) + "\n")
    tail = Tail(path, None)
    tail.poll(NOW, 1e9)
    assert tail.ruleset is not None and not tail._held


def test_a_log_that_goes_while_its_round_is_sought_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "result_0.txt"
    path.write_text(llama_logs.log(0))
    tail = Tail(path, None)
    with monkeypatch.context() as gone:
        gone.setattr(watching, "find", lambda path: find(str(path) + ".gone"))
        assert not tail.poll(NOW, 60)
    assert tail.poll(NOW, 60) and tail.ended and not tail.errors


@pytest.mark.parametrize("every", ["-1", "0", "nan", "inf"])
def test_a_wait_that_is_no_time_gets_a_line(tmp_path, capsys, every):
    assert main(["accept", str(tmp_path), "--watch", f"--every={every}"]) == 2
    assert f"--every={every}: must be more than 0" in capsys.readouterr().err


def test_the_line_of_check_stays_short(tmp_path, capsys):
    logs = [llama_logs.log(index) for index in range(10)]
    keys = ("lora_rank", "lora_alpha", "seed", "eval_samples", "train_samples", "gradient_accumulation_steps")
    logs[:6] = [re.sub(rf'"({"|".join(keys)})"', r'"other_\1"', text) for text in logs[:6]]
    org = tree(tmp_path, logs)
    (reason,) = [one for one in judged(org).reasons if "runs count for no score" in one]
    assert " more), result_1.txt (" in reason and reason.endswith(", and 3 more") and len(reason) < 400
    assert main(["check", str(org)]) == 1 and "\naccept: refused\n" in capsys.readouterr().out


def test_wrong_arguments_get_a_line(tmp_path, capsys):
    assert main(["accept", str(tmp_path / "none")]) == 2
    assert main(["accept", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "no such folder" in said and "no results/<system>/<benchmark>/" in said


# --------------------------------------------------------------------------------------------- its benchmark


def test_bins_and_brier_scores_are_those_of_the_cases():
    draw = random.Random(3)
    case = accept_calibration.Case(ROUND, asked(100.0), True, 1.0, True, False)
    asks = [case._replace(passed=draw.random() < 0.7, so_far=draw.random() < 0.5) for _ in range(300)]
    made = [predict.Prediction(draw.random(), 0.0, 1.0, None, None, 0.0) for _ in asks]
    found = accept_calibration.calibration(asks, made, accept_calibration.EVENTS["passes"])
    share = sum(one.passed for one in asks) / 300
    assert found["brier"] == pytest.approx(
        sum((said.passes - one.passed) ** 2 for said, one in zip(made, asks)) / 300, abs=1e-5
    )
    assert found["brier_base_rate"] == pytest.approx(
        sum((share - one.passed) ** 2 for one in asks) / 300, abs=1e-5
    )
    assert found["brier_runs_so_far"] == pytest.approx(
        sum(one.so_far != one.passed for one in asks) / 300, abs=1e-5
    )
    for row in found["bins"]:
        inside = [one.passed for said, one in zip(made, asks) if row["from"] <= said.passes < row["to"]]
        assert row["cases"] == len(inside) and row["observed"] == pytest.approx(
            sum(inside) / len(inside), abs=1e-4
        )


def test_the_benchmark_of_a_made_round(tmp_path, monkeypatch):
    tree(tmp_path, map(llama_logs.log, range(10)))
    output, rates = tmp_path / "found.json", tmp_path / "rates.json"
    monkeypatch.setattr(accept_calibration, "RATES", rates)
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path), "--processes=1", f"--output={output}"])
    accept_calibration.main()
    found = json.loads(output.read_text())
    assert found["folders"] == found["predicted"] == 1 and found["runs"] == {"runs": 10, "not_converged": 0}
    (top,) = [row for row in found["calibration"]["passes"]["all"]["bins"] if row["cases"]]
    assert (top["from"], top["cases"], top["observed"]) == (0.9, 9, 1.0)
    assert (found["prunings"]["tables"], len(found["prunings"]["different"])) == (90, 24)
    assert json.loads(rates.read_text())["signs"] == found["signs"]
    assert found["signs"]["seed-gap"] == [0, 1]
