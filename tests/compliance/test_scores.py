"""Tests Olympic scores: the rule, its edge cases, both rounds' units, and the published table."""

import re

import pytest

from common.errors import UserError
from compliance.report import published
from compliance.submission import scores
from compliance.submission.runs import read_run
from tests.compliance import made_logs, published_logs, result_logs


def write(folder, *minutes, benchmark="resnet", failed=(), form=lambda text: text):
    folder = folder / "results" / "mine" / benchmark
    folder.mkdir(parents=True)
    for index, value in enumerate(minutes):
        status = "aborted" if index in failed else "success"
        text = result_logs.log(benchmark, index, minutes=value, status=status)
        (folder / f"result_{index}.txt").write_text(form(text))
    return folder


def run_of(folder, text):
    return read_run(made_logs.write(folder, text))


def test_the_fastest_and_the_slowest_are_dropped(tmp_path):
    card = scores.score_directory(write(tmp_path, 30, 10, 20, 50, 40))
    assert card.left_out == (1, 3)
    assert card.score == pytest.approx(30)
    assert card.minutes == pytest.approx([30, 10, 20, 50, 40])
    assert (card.benchmark, card.org, card.system) == ("resnet", "Example", "mine")
    assert (card.converged, card.epochs) == (5, 40)
    assert card.spread == pytest.approx(40 / 30)


def test_a_failed_run_counts_as_the_slowest_whatever_its_time(tmp_path):
    card = scores.score_directory(write(tmp_path, 30, 1, 20, 50, 40, failed=[1]))
    assert card.left_out == (2, 1)
    assert card.score == pytest.approx((30 + 50 + 40) / 3)


def test_a_resumed_run_never_counts_as_the_fastest(tmp_path):
    folder = write(tmp_path, 30, 1, 20, 50, 40)
    log = folder / "result_1.txt"
    log.write_text(made_logs.with_record(log.read_text(), "resumed_from_step", "40"))
    card = scores.score_directory(folder)
    assert (card.left_out, card.converged) == ((2, 1), 4)


def test_two_failed_runs_give_no_score(tmp_path):
    card = scores.score_directory(write(tmp_path, 1, 2, 3, 4, 5, failed=[1, 2]))
    assert card.score is None and card.left_out == ()
    assert "2 runs do not count, at most one may" in card.why


@pytest.mark.parametrize("count", [1, 4, 6])
def test_another_number_of_runs_gives_no_score(tmp_path, count):
    card = scores.score_directory(write(tmp_path, *range(1, count + 1)))
    assert card.score is None and re.search(rf"takes 5 runs, here (is|are) {count}$", card.why)


def test_translation_takes_ten_runs_in_the_order_of_their_numbers(tmp_path):
    card = scores.score_directory(write(tmp_path, *range(10, 110, 10), benchmark="gnmt"))
    assert card.needed == 10 and card.minutes[-1] == pytest.approx(100)
    assert card.score == pytest.approx(55)


def test_files_are_in_the_order_of_their_numbers_whatever_their_digits(tmp_path):
    names = ["result_2.txt", "result_10.txt", "result_1²2.txt", "result_٣.txt", f"result_{'9' * 200}.txt"]
    for name in names:
        (tmp_path / name).write_text("x")
    ordered = ["result_1²2.txt", "result_2.txt", "result_٣.txt", "result_10.txt", names[-1]]
    assert [path.name for path in scores.result_files(tmp_path)] == ordered


def test_v06_seconds_become_minutes(tmp_path):
    card = scores.score_directory(write(tmp_path, 30, 10, 20, 50, 40, form=result_logs.seconds_form))
    assert card.ruleset == "0.6.0" and card.score == pytest.approx(30)


def test_success_below_the_target_does_not_comply(tmp_path):
    text_below, text_above = result_logs.log("resnet", status="aborted"), result_logs.log("resnet")
    assert not run_of(tmp_path, text_below.replace('"status": "aborted"', '"status": "success"')).complies
    assert not run_of(tmp_path, text_above.replace('"status": "success"', '"status": "aborted"')).complies


def test_both_mask_rcnn_targets_must_be_met_at_once(tmp_path):
    text = result_logs.log("maskrcnn")
    run = run_of(tmp_path, text)
    assert run.complies and run.quality == {"BBOX": 0.3785, "SEGM": 0.3412}
    assert not run_of(tmp_path, text.replace('"SEGM": 0.3412', '"SEGM": 0.3312')).complies


def test_reversed_times_are_no_time(tmp_path):
    text = result_logs.log("resnet").replace('"run_start"', '"x"').replace('"run_stop"', '"run_start"')
    run = run_of(tmp_path, text.replace('"x"', '"run_stop"'))
    assert run.minutes is None and not run.complies


def test_different_benchmarks_in_one_folder_give_no_score(tmp_path):
    folder = write(tmp_path, 1, 2, 3, 4, 5)
    (folder / "result_4.txt").write_text(result_logs.log("ssd"))
    assert "different benchmarks" in scores.score_directory(folder).why


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "true", "[]", '"0.8"', "null", '{"a": "b"}', "1" * 400, '{"BBOX": NaN}']
)
def test_odd_qualities_never_comply_and_never_raise(tmp_path, value):
    record = ':::MLLOG {"time_ms": %d, "key": "%s", "value": %s, "metadata": {"status": "success"}}'
    values = {
        "submission_benchmark": '"resnet"',
        "run_start": "null",
        "eval_accuracy": value,
        "run_stop": "null",
    }
    text = "\n".join(record % (1000 * i, key, v) for i, (key, v) in enumerate(values.items()))
    assert not run_of(tmp_path, text).complies


def test_evaluations_that_overlap_are_matched_by_epoch(tmp_path):
    record = ':::MLLOG {"time_ms": %d, "key": "%s", "value": null, "metadata": {"epoch_num": %d}}'
    events = (("eval_start", 1), ("eval_start", 2), ("eval_stop", 1), ("eval_stop", 2), ("eval_stop", 9))
    text = "\n".join(record % (i, key, epoch) for i, (key, epoch) in enumerate(events))
    assert [tuple(span) for span in run_of(tmp_path, text).evals] == [(0, 2, 1), (1, 3, 2)]


def test_places_without_results_are_one_clear_line(tmp_path):
    for call in (scores.score_directory, scores.result_folders):
        with pytest.raises(UserError, match="result_"):
            call(tmp_path)
        with pytest.raises(UserError, match="name a"):
            call(tmp_path / "absent")


def test_links_to_other_folders_are_not_followed(tmp_path):
    outside = write(tmp_path / "outside", 1, 2, 3, 4, 5)
    inside = write(tmp_path / "inside", 1, 2, 3, 4, 5)
    (inside.parent / "linked").symlink_to(outside)
    assert scores.result_folders(tmp_path / "inside") == [inside]


def test_published_scores_at_the_same_count(tmp_path):
    card = scores.score_directory(write(tmp_path, 30, 10, 20, 50, 40))
    assert published.scores_beside(card) == (None, [])
    (tmp_path / "systems").mkdir()
    (tmp_path / "systems" / "mine.json").write_text('{"number_of_nodes": "1", "accelerators_per_node": "8"}')
    count, rows = published.scores_beside(scores.score_directory(card.path))
    assert count == 8 and {row.accelerators for row in rows} == {8}
    assert [row.minutes for row in rows] == sorted(row.minutes for row in rows)
    assert ("v0.7", "NVIDIA", "dgx1_ngc20.06_mxnet") in {(row.round, row.org, row.system) for row in rows}


def test_the_published_table_is_whole():
    rows = published.published_scores()
    assert sum(row.round in ("v0.6", "v0.7") for row in rows) == 120
    assert len({(row.round, row.org, row.system, row.benchmark) for row in rows}) == len(rows)


def test_scores_equal_the_published_ones_to_four_decimals():
    table = {(row.round, row.org, row.system, row.benchmark): row for row in published.published_scores()}
    compared = 0
    for number in published_logs.ROUNDS:
        base = published_logs.folder() / number
        for folder in scores.result_folders(base):
            card = scores.score_directory(folder)
            row = table.get((number, folder.relative_to(base).parts[0], card.system, card.benchmark))
            if row is None:  # the table has Google and NVIDIA and five benchmarks only
                continue
            compared += 1
            assert f"{card.score:.4f}" == f"{row.minutes:.4f}", folder
            assert card.epochs == pytest.approx(row.epochs, abs=5e-4), folder
    assert compared == 34
