"""Tests reasons of `scores` and `accept`: what each asks for is done to a copy, which then has a score, or is a go."""

import ast
import inspect
import os
import re
import shutil

import pytest

from compliance.acceptance import answer as acceptance
from compliance.acceptance.answer import OPEN
from compliance.acceptance.tree_answer import answer_tree
from compliance.api import check
from compliance.submission import scores
from compliance.submission.scores import score_directory
from compliance.verdict import GO, NO_GO
from tests.compliance import llama_logs, made_logs, result_logs
from tests.compliance.fixes import pattern
from tests.compliance.test_fixes_trees import BATCH, LORA, add_file, in_each, in_one, logs, own_log, read

TWO, FIVE = slice(2, 4), slice(2, 7)
PLACE = f"results/box/{LORA}"
RANK = '"lora_rank", "value": 16'


def again(which):
    """Runs some of the series again."""
    return lambda org, one=None: [own_log(number)(org) for number in range(10)[which]]


def resumed(text):
    return made_logs.with_record(text, "resumed_from_step", "9")


def extra(*numbers, started=True):
    """Adds logs of more runs, or of launches that ended before run_start an hour and more ago."""

    def add(org, one=None):
        for number in numbers:
            text = llama_logs.log(number)
            add_file(
                f"{PLACE}/result_{number}.txt", text if started else text[: text.index('"init_stop"') - 120]
            )(org)
            os.utime(org / PLACE / f"result_{number}.txt", (0, 0))

    return add


def remove(org, one=None):
    """Removes the logs that the advice tells of."""
    for path in logs(org):
        if "run_start" not in path.read_text():
            path.unlink()


def statements(function):
    """The sentences that a function has, as patterns."""
    for part in ast.walk(ast.parse(inspect.getsource(function))):
        if isinstance(part, ast.JoinedStr):
            text = "".join(one.value if isinstance(one, ast.Constant) else "{}" for one in part.values)
        else:
            text = part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
        if text.count(" ") > 2 and not text.rstrip().endswith(".") and text.replace("{}", "").count(" ") > 2:
            yield pattern(text)


# (why there is no score, what damages a folder of ten runs, what the reason asks for)
NO_SCORE = [
    (r"a llama2_70b_lora score takes 10 runs, here are 9", lambda org: logs(org)[9].unlink(),
     read(r"takes (\d+) runs", lambda count: own_new(int(count) - 1), of="why")),
    (r"the logs are of different benchmarks", in_each(f'"{LORA}"', '"llama31_405b"', TWO),
     in_each('"llama31_405b"', f'"{LORA}"', TWO)),
    (r"2 runs have no time from run_start to run_stop that can be read", in_each('"run_stop"', '"run_halt"', TWO),
     again(TWO)),
    (r"2 runs do not count, at most one may: lora_rank.value", in_each(RANK, RANK[:-2] + "32", TWO),
     in_each(RANK[:-2] + "32", RANK, TWO)),
    (r"2 runs do not count, at most one may: no time to train",
     lambda org: [in_one(number, resumed)(org) for number in (2, 3)], again(TWO)),
]  # fmt: skip


def own_new(number):
    return add_file(f"{PLACE}/result_{number}.txt", llama_logs.log(number))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return llama_logs.tree(
        tmp_path_factory.mktemp("sound") / "training_results_v5.0" / "Other_Lab", code="nemo"
    )


def copied(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / sound.parent.name / sound.name)


@pytest.mark.parametrize(("why", "damage", "mend"), NO_SCORE, ids=[one[0][:40] for one in NO_SCORE])
def test_what_a_missing_score_asks_for_gives_one(tmp_path, sound, why, damage, mend):
    org = copied(sound, tmp_path)
    damage(org)
    card = score_directory(org / PLACE)
    assert card.score is None and card.why == why
    mend(org, card)
    assert score_directory(org / PLACE).score == score_directory(sound / PLACE).score


def test_a_status_that_is_not_success_gives_no_score_in_round_0_7(tmp_path):
    place = result_logs.write_logs(tmp_path / "dgx-1" / "resnet", "resnet")
    before = score_directory(place).score
    for number in (1, 2):
        path = place / f"result_{number}.txt"
        path.write_text(path.read_text().replace('"success"', '"done"'))
    assert score_directory(place).why == "2 runs do not count, at most one may: status done"
    for number in (1, 2):
        path = place / f"result_{number}.txt"
        path.write_text(path.read_text().replace('"done"', '"success"'))
    assert score_directory(place).score == before


def test_a_run_without_a_target_says_so_where_its_status_is_success(tmp_path):
    place = result_logs.write_logs(tmp_path / "dgx-1" / "resnet", "resnet")
    for number in (1, 2):
        path = place / f"result_{number}.txt"
        path.write_text(made_logs.with_record(path.read_text(), "no_mlperf_result", '"no"'))
    assert score_directory(place).why == "2 runs do not count, at most one may: no quality target"


def test_every_reason_of_a_missing_score_has_a_row():
    for sentence in statements(scores._olympic):
        assert any(re.search(sentence, why) for why, *_ in NO_SCORE), sentence


FAST = '"samples_count": 3456', '"samples_count": 1920'
# (answer, a word of the reasons, what damages the folder, what the advice says to do)
NO_GO_ROWS = [
    (NO_GO, "11 runs; a score takes 10", extra(10),
     read(r"keep (\d+) runs", lambda count: lambda org, one: logs(org)[int(count)].unlink(), of="advice")),
    (NO_GO, "count for no score", in_each(RANK, RANK[:-2] + "32", FIVE), again(FIVE)),
    (NO_GO, "different values of global_batch_size", in_each(BATCH, BATCH[:-1] + "16", TWO), again(TWO)),
    (NO_GO, "converges faster than the reference may", in_each(*FAST),
     read(r"with (rcp-bypass)", lambda flag: add_file("package_checker_params", flag), of="advice")),
    (NO_GO, "result_10.txt never reached run_start", extra(10, started=False), remove),
    (NO_GO, "more logs never reached run_start", extra(*range(10, 15), started=False), remove),
    (OPEN, "no reference for batch size", in_each(BATCH, BATCH[:-1] + "4096"), in_each(BATCH[:-1] + "4096", BATCH)),
]  # fmt: skip


@pytest.mark.parametrize(("word", "reason", "damage", "mend"), NO_GO_ROWS, ids=[one[1] for one in NO_GO_ROWS])
def test_what_accept_advises_makes_a_no_go_none(tmp_path, sound, word, reason, damage, mend):
    org = copied(sound, tmp_path)
    damage(org)
    (one,) = answer_tree(check([org])).answers
    assert one.answer == word and reason in " ".join(one.reasons), one
    mend(org, one)
    after = answer_tree(check([org]))
    assert after.answer == (OPEN if "rcp-bypass" in one.advice else GO), after


def test_every_sentence_of_a_no_go_is_in_a_row(tmp_path, sound):
    sentences = []
    for number, (_, _, damage, _) in enumerate(NO_GO_ROWS):
        org = copied(sound, tmp_path / str(number))
        damage(org)
        (one,) = answer_tree(check([org])).answers
        sentences += [*one.reasons, one.advice]
    for function in (acceptance._refused_anyway, acceptance._with_dead):
        for sentence in statements(function):
            assert any(re.search(sentence, text) for text in sentences), sentence
