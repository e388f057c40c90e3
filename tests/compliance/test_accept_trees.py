"""Tests what `accept` answers to trees, and to logs that grow."""

import json
import os
import pickle
import re
from dataclasses import replace

import pytest

from compliance import check
from compliance.acceptance import probability
from compliance.acceptance.answer import OPEN, answer
from compliance.acceptance.tree_answer import answer_tree, folders_of
from compliance.log.check_log import check_log
from compliance.submission.facts import Result
from compliance.submission.rcp import FAIL, Convergence
from compliance.submission.runs import RunReader, read_run
from compliance.verdict import GO, NO_GO
from tests.compliance import llama_logs, made_logs
from tests.compliance.test_accept import ROUND, case
from timetotrain.cli import main

# ----------------------------------------------------------------------------------------------------- trees


def tree(tmp_path, logs):
    return llama_logs.tree(tmp_path / "training_results_v5.0" / "Other_Lab", logs, system="1xbox")


NOW = 1_700_100_000  # soon after the runs of the made logs


def judged(org, now=NOW):
    for path in org.rglob("result_*.txt"):
        os.utime(path, (NOW, NOW))
    return answer_tree(check([org]), now)


def test_a_complete_tree_is_accepted(tmp_path, capsys):
    org = tree(tmp_path, map(llama_logs.log, range(10)))
    result = judged(org)
    assert (result.answer, result.probability) == (GO, 1.0)
    assert main(["accept", str(org)]) == 0 and capsys.readouterr().out.endswith("\ngo\n")
    assert main(["check", str(org)]) == 0 and "accept:" not in capsys.readouterr().out


def test_some_runs_leave_it_open_with_a_probability(tmp_path, capsys):
    org = tree(tmp_path, map(llama_logs.log, range(4)))
    actual = judged(org)
    (one,) = actual.answers
    assert actual.answer == OPEN and 0.9 < actual.probability < 1 and one.runs == 4
    assert one.advice == "go on: 6 more runs"
    assert main(["accept", str(org), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["probability"] == actual.probability and content["folders"][0]["needed"] == 10


def test_a_complete_folder_is_judged_by_the_logs_that_it_is_asked_about(tmp_path):
    """Not by those that have to go."""
    outcome = check([tree(tmp_path, map(llama_logs.log, range(10)))])
    ((name, folder, *more),) = folders_of(outcome, (NOW, 60))
    others = replace(folder, convergence=Convergence(FAIL, "a log without a batch"))
    assert answer(name, others, *more) == answer(name, folder, *more)


def fast(text):
    """A log that converges at a tenth of the samples."""
    return text.replace('"samples_count": 3456', '"samples_count": 346')


def test_runs_that_are_too_fast_are_told_to_stop(tmp_path):
    result = judged(tree(tmp_path, [fast(llama_logs.log(index)) for index in range(6)]))
    assert result.answer == OPEN and result.probability < 0.01
    assert result.answers[0].advice.startswith("stop: one more run cannot help")
    done = judged(tree(tmp_path / "b", [fast(llama_logs.log(index)) for index in range(10)]))
    assert done.answer == NO_GO and "converges faster" in done.reasons[0]


def test_one_failed_run_is_dropped_and_two_refuse_whatever_follows(tmp_path):
    logs = [llama_logs.log(index) for index in range(5)]
    failed = llama_logs.log(8, status="aborted")
    one = judged(tree(tmp_path, [*logs, failed]))
    assert one.answer == OPEN and 0.5 < one.probability < judged(tree(tmp_path / "b", logs)).probability
    two = judged(tree(tmp_path / "c", [*logs, failed, llama_logs.log(9, status="aborted")]))
    assert two.answer == NO_GO and "2 runs count for no score" in two.reasons[0]


def test_other_errors_refuse(tmp_path):
    org = tree(tmp_path, map(llama_logs.log, range(10)))
    (org / "systems" / "1xbox.json").unlink()
    result = judged(org)
    assert result.answer == NO_GO
    assert any("1xbox" in reason or "description" in reason for reason in result.reasons), result.reasons


def test_a_batch_size_without_a_reference_is_open(tmp_path):
    batch = '"global_batch_size", "value": '
    big = [llama_logs.log(index).replace(f"{batch}8", f"{batch}4096") for index in range(3)]
    result = judged(tree(tmp_path, big))
    assert result.answer == OPEN and result.probability is None and "no reference" in result.reasons[0]


@pytest.mark.parametrize("odd", ["1e200", "1" + 400 * "0", "-5", "1e-320", "1e15"])
def test_absurd_counts_and_times_give_an_answer(tmp_path, odd, capsys):
    texts, batch = [llama_logs.log(index) for index in range(4)], '"global_batch_size", "value": '
    time = r'"time_ms": (\d+)(?=.*"eval_accuracy")'
    changed = {
        "all": [re.sub('"samples_count": [1-9][0-9]*', f'"samples_count": {odd}', text) for text in texts],
        "times": [re.sub(time, f'"time_ms": {odd}', text) for text in texts],
        "batch": [text.replace(f"{batch}8", batch + odd) for text in texts],
    }
    for name, logs in changed.items():
        assert logs != texts
        org = tree(tmp_path / name, logs)
        assert judged(org).answer in (OPEN, NO_GO)
        for path in org.rglob("result_*.txt"):
            run = read_run(path, ROUND)
            assert all(at is None or 0 <= at < 1e15 for at, *_ in run.results)
            assert run.to_converge is None or 0 <= run.to_converge < 1e15


def test_evaluations_at_nearly_one_place_tell_no_step():
    near, far = (
        replace(RunReader("a", ROUND).run(), results=tuple(Result(at, "1", 0.0) for at in places))
        for places in ((0.0, 1e-320, 3072.0, 3072.0 + 1e-9), (384.0, 768.0))
    )
    assert probability.step_of([near]) == 0 and probability.step_of([far]) == 384
    tiny = probability.estimate(case(99.0, 101.0, step=1e-320))
    assert tiny == probability.estimate(case(99.0, 101.0))


def growing(text, part):
    lines = text.splitlines(keepends=True)
    return "".join(lines[: int(len(lines) * part)])


def test_a_log_that_grows_is_not_yet_wrong(tmp_path):
    logs = [llama_logs.log(index) for index in range(4)]
    org = tree(tmp_path, [*logs, *(growing(llama_logs.log(index), 0.5) for index in (4, 5))])
    result = judged(org)
    assert result.answer == OPEN and result.answers[0].runs == 4 and result.probability > 0.9
    stale = judged(org, NOW + 7200)  # nobody writes to it any more: the run broke off
    assert stale.answer == NO_GO and stale.answers[0].runs == 6
    copied = answer_tree(check([org]), NOW + 90 * 86_400, stale_minutes=1e6)
    assert copied.answers[0].runs == 6


def before_start(text):
    return text[: text.rindex("\n", 0, text.index('"run_start"')) + 1]


def test_a_launch_that_died_before_run_start_has_to_go_and_is_no_run(tmp_path, capsys):
    org = tree(tmp_path, [*map(llama_logs.log, range(10)), before_start(llama_logs.log(10))])
    assert judged(org).answers[0].under_way == 1  # somebody may yet write to it
    stale = judged(org, NOW + 7200)
    (one,) = stale.answers
    assert (stale.answer, one.answer, one.runs, one.under_way) == (NO_GO, NO_GO, 10, 0)
    assert one.reasons == ("result_10.txt never reached run_start: remove this log",)
    assert one.advice == "remove result_10.txt; then submit it"
    assert main(["scores", str(org)]) == 1
    assert "result_10.txt: no time, never reached run_start" in capsys.readouterr().out
    (org / "results/1xbox/llama2_70b_lora/result_10.txt").unlink()
    assert judged(org, NOW + 7200).answer == GO


def test_a_dead_launch_among_missing_runs_leaves_it_open(tmp_path):
    dead = before_start(llama_logs.log(3))
    org = tree(tmp_path, [*map(llama_logs.log, range(3)), dead])
    (one,) = judged(org, NOW + 7200).answers
    assert (one.answer, one.runs, one.under_way) == (OPEN, 3, 0) and "7 more runs" in one.advice
    assert "result_3.txt never reached run_start: remove this log" in one.reasons


def test_a_log_without_a_benchmark_counts_in_a_plain_folder(tmp_path, capsys):
    for index in range(11):
        (tmp_path / f"result_{index}.txt").write_text(llama_logs.log(index))
    path = tmp_path / "result_10.txt"
    path.write_text(path.read_text().replace('"submission_benchmark"', '"other_key"'))
    assert main(["accept", str(tmp_path)]) == 1
    text = capsys.readouterr().out
    assert "11 of 10 runs" in text and "result_10.txt: The log has no submission_benchmark" in text
    assert main(["scores", str(tmp_path)]) == 1
    assert "note: result_10.txt: The log has no submission_benchmark" in capsys.readouterr().out


def test_what_is_wrong_already_counts_before_the_run_ends(tmp_path):
    bad = llama_logs.log(4).replace('"lora_rank", "value": 16', '"lora_rank", "value": 99')
    bad = [growing(bad, 0.5), growing(bad, 0.6)]
    result = judged(tree(tmp_path, [llama_logs.log(0), *bad]))
    assert result.answer == NO_GO and "lora_rank" in result.reasons[0]


# ----------------------------------------------------------------------------------------------------- logs


def test_a_deep_value_reaches_another_process_as_text(tmp_path):
    org = tree(tmp_path, [llama_logs.log(0)])
    path = org / "results/1xbox/llama2_70b_lora/result_0.txt"
    lines = path.read_text().splitlines(keepends=True)
    deep = re.sub(r'"value": [^,]+', f'"value": {"[" * 900}{"]" * 900}', lines[0])
    path.write_text(deep.replace('"key": "', '"key": "my_') + "".join(lines))
    settings = pickle.loads(pickle.dumps(check_log(str(path)).run)).settings
    assert any("deep" in str(value) or str(value).startswith("[[[") for value in settings.values())


@pytest.mark.parametrize("key", ["eval_accuracy", "eval_error"])
def test_results_after_run_start_are_facts(tmp_path, key):
    path = made_logs.write(tmp_path, llama_logs.log(0).replace("eval_accuracy", key))
    assert read_run(path, "5.0.0").results and read_run(path, "5.0.0").to_converge


def test_the_line_of_check_stays_short(tmp_path, capsys):
    logs = [llama_logs.log(index) for index in range(10)]
    keys = ("lora_rank", "lora_alpha", "seed", "eval_samples", "train_samples", "gradient_accumulation_steps")
    logs[:6] = [re.sub(rf'"({"|".join(keys)})"', r'"other_\1"', text) for text in logs[:6]]
    org = tree(tmp_path, logs)
    (reason,) = [one for one in judged(org, NOW + 60).reasons if "runs count for no score" in one]
    assert " more), result_1.txt (" in reason and reason.endswith(", and 3 more") and len(reason) < 400
    assert main(["check", str(org)]) == 1 and "accept:" not in capsys.readouterr().out


def test_wrong_arguments_get_a_line(tmp_path, capsys):
    assert main(["accept", str(tmp_path / "none")]) == 2
    assert main(["accept", str(tmp_path)]) == 2
    text = capsys.readouterr().err
    assert "no such folder" in text and "no results/<system>/<benchmark>/" in text
