"""Tests the report page (self-contained, escaped, complete, drawn to scale), and the comparison of two folders."""

import argparse
import base64
import dataclasses
import hashlib
import html.parser
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import UserError
from compliance import check
from compliance.report import charts, compare, output, published
from compliance.report import page as report_page
from compliance.submission import scores
from compliance.submission.runs import read_run
from compliance.submission.scores import score_directory
from tests.compliance import llama_logs, made_logs, result_logs
from tests.compliance.test_scores import write
from timetotrain import cli
from timetotrain.verbs import VERBS
from tools.published import LATER


def folder(tmp_path, benchmark="resnet", **options):
    return result_logs.write_logs(tmp_path / "results" / "dgx-1" / benchmark, benchmark, **options)


class Page(html.parser.HTMLParser):
    """Collects elements and text, and asserts that every element is closed."""

    VOID = {"meta", "input", "line", "rect", "path", "br", "link", "img", "wbr"}

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def of(self, tag, **attributes):
        expected = {name.rstrip("_"): value for name, value in attributes.items()}
        return [a for t, a in self.elements if t == tag and expected.items() <= a.items()]

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))


def test_the_page_of_one_folder(tmp_path):
    card = scores.score_directory(folder(tmp_path))
    page = Page(report_page.page([card]))
    assert "resnet on dgx-1" in page.text and "32.00 minutes" in page.text
    assert "dropped, fastest" in page.text and "dropped, slowest" in page.text
    assert len(page.of("article")) == 5
    counts = [len(page.of("rect", class_=f"lane-{lane}")) for lane in ("init", "train", "eval")]
    assert counts == [5, 50, 50]
    assert len(page.of("line", class_="target")) == 7  # five runs, the overlay and its legend
    identifiers = [a["id"] for _, a in page.elements if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    for name, attributes in page.elements:
        if attributes.get("role") == "img":
            assert set(attributes["aria-labelledby"].split()) <= set(identifiers), name


def test_the_findings_of_check_are_shown(tmp_path):
    place = folder(tmp_path)
    assert run(place, "-o", tmp_path / "good.html") == 0
    assert "0 kinds of error" in Page((tmp_path / "good.html").read_text()).text
    for path in place.iterdir():
        path.write_text(
            path.read_text().replace('"lars_epsilon", "value": 0.0', '"lars_epsilon", "value": 1')
        )
    assert run(place, "-o", tmp_path / "bad.html") == 0
    text = Page((tmp_path / "bad.html").read_text()).text
    assert "1 kind of error" in text and "lars_epsilon" in text and "and 2 more" in text


@pytest.mark.parametrize(
    "value",
    ["null", "NaN", "-1e308", '"x"', "[1, 2]", "{}", 40 * "9", 5000 * "9", "1e999", '{"BBOX": 1}', r'"\ud800"'],
)  # fmt: skip
def test_any_value_anywhere_still_gives_a_page(tmp_path, value):
    text = result_logs.log("resnet")
    for index, part in enumerate(("time_ms", "value", "epoch_num", "first_epoch_num", "metadata")):
        line = rf'("{part}": )[^,}}]+'
        (tmp_path / f"result_{index}.txt").write_text(re.sub(line, lambda match: match[1] + value, text))
    text = report_page.page([scores.score_directory(tmp_path)])
    Page(text)
    assert "nan%" not in text and "inf%" not in text


def test_nothing_is_fetched_and_nothing_runs(tmp_path):
    text = report_page.page([scores.score_directory(folder(tmp_path))])
    page = Page(text)
    assert not page.of("script") and not page.of("link") and not page.of("img")
    assert not re.search(r"https?:|@import|url\(", text)
    assert all(a["href"].startswith("#") for a in page.of("a"))
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]


def test_what_a_log_says_is_escaped(tmp_path):
    place = folder(tmp_path, org="<script>alert(1)</script>")
    hostile = '"submission_division", "value": "\\"><img src=x onerror=y>\\ud800"'
    for path in place.iterdir():
        path.write_text(path.read_text().replace('"submission_division", "value": "closed"', hostile))
    target = tmp_path / "report.html"
    assert run(place, "-o", target) == 0
    page = Page(target.read_text())
    assert not page.of("script") and not page.of("img") and "alert(1)" in page.text


def run(*arguments):
    options = cli.parser("report").parse_args([str(argument) for argument in arguments])
    return cli.load("report", VERBS["report"]).run(options)


def test_a_tree_has_a_table_of_its_folders(tmp_path, capsys):
    folder(tmp_path)
    folder(tmp_path, "maskrcnn")
    assert run(tmp_path, "-o", tmp_path / "all.html") == 0
    assert "10 runs in 2 folders" in capsys.readouterr().out
    page = Page((tmp_path / "all.html").read_text())
    assert {a["href"] for a in page.of("a")} == {"#folder-1", "#folder-2"}
    assert "BBOX" in page.text and "SEGM" in page.text


def test_the_index_of_a_tree(tmp_path):
    place = folder(tmp_path)
    folder(tmp_path, "maskrcnn")
    (tmp_path / "systems").mkdir()
    described = llama_logs.description(submitter="Example", status="onprem", system_name="dgx-1")
    (tmp_path / "systems" / "dgx-1.json").write_text(json.dumps(described))
    for index in (1, 2):
        (place / f"result_{index}.txt").write_text(result_logs.log("resnet", index, status="aborted"))
    assert run(tmp_path, "-o", tmp_path / "all.html") == 0
    page = Page((tmp_path / "all.html").read_text())
    rows = re.findall(r"<tr data-verdict=.*?</tr>", (tmp_path / "all.html").read_text(), re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    plain = [[re.sub(r"<.*?>", "", cell) for cell in row] for row in cells]
    heads = ["verdict", "benchmark", "system", "org", "accelerators", "errors", "runs", "failed", "dropped"]
    first, second = (dict(zip(heads, row)) for row in plain)
    ends = [[row[name] for name in ("verdict", "benchmark", "failed", "dropped")] for row in (first, second)]
    assert ends == [["go", "maskrcnn", "0", "2"], ["no-go", "resnet", "2", "0"]]
    assert second["errors"] != "0" and plain[1][-1] == "–" and "11 files checked, 3 errors" in page.text


def test_only_the_pages_own_script_may_run(tmp_path):
    folder(tmp_path)
    folder(tmp_path, "maskrcnn", org="</script><script>alert(1)</script>")
    assert run(tmp_path, "-o", tmp_path / "all.html") == 0
    text = (tmp_path / "all.html").read_text()
    page = Page(text)
    (policy,) = [a["content"] for a in page.of("meta", **{"http-equiv": "Content-Security-Policy"})]
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert len(script) == 1 and f"script-src 'sha256-{digest}'" in policy and "default-src 'none'" in policy
    assert not re.search(r"https?:|@import|url\(|fetch|innerHTML|eval", script[0])


def test_a_link_is_refused_as_by_check(tmp_path, capsys):
    place = folder(tmp_path)
    (place / "result_4.txt").rename(tmp_path / "aside")
    (place / "result_4.txt").symlink_to(tmp_path / "aside")
    assert run(tmp_path / "results", "-o", tmp_path / "page.html") == 0
    assert "4 runs in 1 folder. no-go" in capsys.readouterr().out
    text = Page((tmp_path / "page.html").read_text()).text
    assert "symbolic link" in text or "not checked" in text
    outcome = check([tmp_path / "results"])
    assert len(outcome.logs) == 4 and "not-checked" in {finding.rule for finding in outcome.errors}


# Scores in the official tables: training_results_v1.1 NVIDIA/summarizer.csv, training_results_v2.1 Azure/summary.csv.
OFFICIAL = {
    ("v1.1", "dgxa100_n128_ngc21.09_mxnet", "resnet"): 0.5746833333333333,
    ("v1.1", "dgxa100_n16_ngc21.09_pytorch", "rnnt"): 4.40828125,
    ("v1.1", "dgxa100_n224_ngc21.09_tensorflow", "minigo"): 15.465202083333335,
    ("v2.1", "NC96ads_A100_v4_mxnet", "unet3d"): 58.846484375,
    ("v2.1", "NC96ads_A100_v4_pytorch_2209", "bert"): 46.25666041666666,
}


def test_the_published_scores_of_later_rounds():
    rows = {(row.round, row.system, row.benchmark): row for row in published.published_scores()}
    for key, minutes in OFFICIAL.items():
        assert rows[key].minutes == pytest.approx(minutes, abs=6e-5), key
    rounds = sorted({row.round for row in published.published_scores()})
    assert rounds[:2] == ["v0.6", "v0.7"] and tuple(rounds[2:]) == (*LATER, "v6.0")
    assert all(row.accelerators > 0 and row.minutes > 0 for row in published.published_scores())


def test_a_smoke_run_is_called_one_and_not_compared(tmp_path):
    place = result_logs.write_results(tmp_path, "resnet", smoke=True, description=EIGHT)
    page = Page(report_page.page([scores.score_directory(place)]))
    assert "Smoke run." in page.text and "(this)" not in page.text


EIGHT = {"number_of_nodes": "1", "accelerators_per_node": "8"}


def test_a_smoke_run_aims_at_the_target_of_its_own(tmp_path):
    place = result_logs.write_results(tmp_path, "resnet", smoke=True, count=1, status="aborted")
    content = (place / "run.json").read_text()
    (place / "run.json").write_text(content.replace('"quality_target": 0.759', '"quality_target": 0.5'))
    assert "target 0.5" in Page(report_page.page([scores.score_directory(place)])).text


def test_the_place_among_published_scores(tmp_path):
    place = result_logs.write_results(tmp_path, "resnet", description=EIGHT, minutes=100)
    page = Page(report_page.page([scores.score_directory(place)]))
    table = published.distinct_scores()
    faster = [row for row in table if row.benchmark == "resnet" and row.accelerators == 8]
    place_of_ours = 1 + sum(row.minutes < 100 for row in faster)
    assert f"place {place_of_ours} of {len(faster) + 1}" in page.text and "dgx-1 (this)" in page.text
    assert "v0.6 to v4.0" in page.text  # the first and the last round with ResNet-50 on 8 accelerators
    assert len([a for _, a in page.elements if a.get("class") == "other"]) <= 26


def test_a_log_without_times_is_still_reported(tmp_path):
    place = folder(tmp_path)
    for path in place.iterdir():
        path.write_text(path.read_text().replace("time_ms", "time_s"))
    page = Page(report_page.page([scores.score_directory(place)]))
    assert "No score" in page.text and page.text.count("No drawing") == 5


def test_the_lanes_add_up(tmp_path):
    line = charts.timeline(read_run(made_logs.write(tmp_path, result_logs.log("resnet", minutes=30))))
    totals = {lane.name: lane.total_ms for lane in line.lanes}
    assert totals["train"] + totals["eval"] + totals["gap"] == pytest.approx(30 * 60_000, abs=1)
    assert totals["init"] == pytest.approx(90_000, abs=50)
    assert totals["eval"] == pytest.approx(30 * 60_000 * 0.1, rel=0.01)
    bars = {lane.name: lane.bars for lane in line.lanes}
    (left, width), *_ = bars["init"]
    assert line.start == pytest.approx(left + width, abs=0.1), "run_start stands where init ends"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (9999, "9999"), (12345678, "12,345,678"), (-12345678, "-12,345,678"), (10**15, "1" + 15 * "0"),
        (True, "True"), (0.123456789, "0.12346"), (123456.7, "123,457"), ("x" * 200, "x" * 120),
    ],
)  # fmt: skip
def test_values_are_short(number, text):
    assert output.value(number) == text


def test_an_evaluation_of_half_a_millisecond_is_drawn(tmp_path):
    run = read_run(made_logs.write(tmp_path, result_logs.log("resnet")))
    first, *others = run.evals
    short = dataclasses.replace(run, evals=[first._replace(stop=first.start + 0.5), *others])
    bars = [{lane.name: lane.bars for lane in charts.timeline(one).lanes}["eval"] for one in (run, short)]
    assert len(bars[0]) == len(bars[1]) == len(run.evals)


def test_a_better_quality_stands_higher(tmp_path):
    run = read_run(made_logs.write(tmp_path, result_logs.log("resnet")))
    whole = charts.axis([0, 1])
    (metric,) = charts.metrics([run])
    points = charts.curve(run, metric, charts.axis([0, 60]), whole, 60_000).points
    heights = [100 - height for _, height in points]
    values = [evaluation.values[metric] for evaluation in run.evaluations]
    assert heights == pytest.approx([whole(value) for value in values], abs=0.01)


intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


@given(intervals, intervals)
def test_interval_arithmetic_is_that_of_sets(first, second):
    def points(parts):
        return {point for start, stop in parts for point in range(start, stop)}

    whole, holes = charts.union(first), charts.union(second)
    assert points(whole) == points(first)
    assert all(a[1] < b[0] for a, b in zip(whole, whole[1:]))
    assert points(charts.without(whole, holes)) == points(first) - points(second)


@given(st.lists(st.floats(), max_size=5), st.integers(1, 12), st.booleans())
def test_an_axis_takes_any_numbers(values, count, widen):
    axis = charts.axis(values, count, widen)
    assert axis.high > axis.low and len(axis.ticks) < 5 * count + 5
    assert all(0 <= at <= 100 for at, _ in axis.ticks)
    assert all(0 <= axis(value) <= 100 for value in values if math.isfinite(value))


def test_axis_ticks_are_round():
    axes = charts.axis([0, 28.7], 4), charts.axis([0, 28.7], 7), charts.axis([0.27, 0.76], 4, widen=True)
    labels = [" ".join(label for _, label in axis.ticks) for axis in axes]
    assert labels == ["0 10 20", "0 5 10 15 20 25", "0.2 0.4 0.6 0.8"]


def test_every_dropped_run_is_called_so(tmp_path):
    card = scores.score_directory(folder(tmp_path))
    # Of unet3d four are dropped at each end; here one of the slow ones failed.
    card = dataclasses.replace(
        card, benchmark="unet3d", runs=card.runs * 2, counts=(True,) * 9 + (False,),
        left_out=(3, 1, 2, 0, 5, 6, 7, 9),
    )  # fmt: skip
    fates = [report_page.fate(card, index) for index in range(10)]
    assert fates == [*["fastest"] * 4, "counted", *["slowest"] * 3, "counted", "failed"]


def test_a_run_that_breaks_a_rule_failed(tmp_path):
    place = folder(tmp_path)
    log = place / "result_1.txt"
    log.write_text(log.read_text().replace('"lars_epsilon", "value": 0.0', '"lars_epsilon", "value": 1'))
    page = Page(report_page.page([scores.score_directory(place)])).text
    assert "dropped, failed" in page and "dropped, slowest" not in page
    assert "failed: missed the target or broke a rule (result_1)" in page


@pytest.fixture
def folders(tmp_path):
    """Two sets of resnet runs that differ in time and learning rate."""
    rate = '"lars_opt_base_learning_rate", "value": '
    first = write(tmp_path / "first", *range(30, 35))
    second = write(
        tmp_path / "second", *range(15, 20), form=lambda text: text.replace(f"{rate}13.0", f"{rate}10.0")
    )
    return [str(first), str(second)]


def call(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.run(parser.parse_args([str(argument) for argument in arguments]))


def rows(*sides):
    return {name: rest for name, *rest in compare.compare(*map(score_directory, sides))}


def test_runs(folders):
    actual = rows(*folders)
    assert actual["score, minutes"] == ["32.00", "17.00", "0.5312"]
    assert actual["lars_opt_base_learning_rate"][:2] == ["13", "10"]
    assert all(a == b for a, b, _ in (actual["global_batch_size"], actual["quality"]))


def test_text_shows_what_differs_and_all_on_request(folders, capsys):
    assert call(*folders) == 0
    brief = capsys.readouterr().out
    assert "score, minutes" in brief and "global_batch_size" not in brief
    assert call(*folders, "--all") == 0
    assert "global_batch_size" in capsys.readouterr().out
    assert call(folders[0], folders[0]) == 0 and "are equal" in capsys.readouterr().out


def test_what_is_no_folder_of_runs(folders):
    with pytest.raises(UserError, match="name a results folder or a log"):
        call(folders[0], "nothing-like-it")
    description = Path(folders[0], "dgx-1.json")
    description.write_text('{"submitter": "Lab", "system_name": "dgx-1"}')
    with pytest.raises(UserError, match="dgx-1.json: no record of a log"):
        call(description, description)


def test_an_integer_beyond_every_float_has_no_ratio(folders):
    path = Path(folders[0]) / "result_0.txt"
    text = path.read_text().replace(
        '"global_batch_size", "value": ', f'"global_batch_size", "value": {"9" * 400}'
    )
    path.write_text(text)
    assert rows(folders[1], folders[0])["global_batch_size"][-1] == ""
