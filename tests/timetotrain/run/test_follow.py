"""Tests the page that follows a run, and TensorBoard's events of it."""

import argparse
import html.parser
import json
import re

import pytest

from common.errors import UserError
from timetotrain import report
from timetotrain.follow import command, page, tensorboard

HEAD = {
    "kind": "run", "step": 0, "seconds": 0.0, "benchmark": "resnet", "system": "here", "seed": 1,
    "quality": "top-1 accuracy", "unit": "%", "lower_is_better": False, "names": {}, "target": 0.8,
    "train_steps": 40, "global_batch_size": 8,
}  # fmt: skip


def records(steps=20, loss=lambda step: 2.0 / step):
    yield HEAD
    for step in range(1, steps + 1):
        yield {
            "kind": "train", "step": step, "seconds": 0.5 * step, "time": 1e9 + step, "loss": loss(step),
            "learning_rate": 0.1, "examples_per_second": 16.0,
        }  # fmt: skip
        if step % 5 == 0:
            yield {
                "kind": "evaluation", "step": step, "time": 1e9 + step, "epoch": step // 5,
                "seconds": 0.5 * step, "value": step / 50,
            }  # fmt: skip


def write(path, content):
    path.write_text("".join(json.dumps(r) + "\n" for r in content))
    return path


class Whole(html.parser.HTMLParser):
    """Checks that elements close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.text = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "input", "img", "link", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_shows_progress_quality_and_target():
    parser = Whole()
    text = page.render(list(records()))
    parser.feed(text)
    assert parser.open == []
    words = " ".join(" ".join(parser.text).split())
    for part in (
        "step 20 of 40",
        "about 10.0 s",
        "top-1 accuracy 40.0 %",
        "80.0 %",
        "training loss",
        "smoothed",
    ):
        assert part in words, part
    assert "location.reload" in text
    done = page.render(
        [*records(), {"kind": "end", "step": 20, "seconds": 11.0, "status": "complete", "reason": ""}]
    )
    assert "location.reload" not in done


def test_classes_stand_worst_first_and_the_best_of_equals_has_the_lower_loss():
    run = list(records())
    for record, loss in zip((r for r in run if r["kind"] == "evaluation"), (3.0, 2.0, 1.0, 4.0)):
        record |= {"value": 0.5, "loss": loss, "by_class": {"cat": 0.9, "<dog>": loss / 10}}
    parser = Whole()
    parser.feed(page.render(run))
    words = " ".join(" ".join(parser.text).split())
    assert "Average precision by class, worst first <dog> 40.0 % cat 90.0 %" in words
    assert "epoch 3" in words
    run[-1]["confused"] = [["<dog>", "cat", 7]]
    assert re.search(
        "Most frequent wrong answers</h2>\\s.*\\s<div><dt>&lt;dog&gt; as cat</dt><dd>7<", page.render(run)
    )
    plain = page.render(list(records()))
    assert "by class" not in plain and "wrong answers" not in plain


def test_the_head_is_written_once_and_dots_hold_their_titles_alone():
    text = page.render(list(records()))
    assert text.count('<meta name="color-scheme"') == text.count('<link rel="icon"') == 1
    dots = re.findall(r'<path class="dot[^>]*>(.*?)</path>', text, re.S)
    assert dots and all(re.fullmatch("<title>[^<]+</title>", dot) for dot in dots)


def test_the_speed_is_the_median_of_the_last_twenty_steps():
    run = list(records(60))
    for record in run:
        if record["kind"] == "train":  # 1, 2, 3 ...: the last twenty are 41 to 60.
            record["examples_per_second"] = float(record["step"])
    parser = Whole()
    parser.feed(page.render(run))
    assert "examples/s 51.0" in " ".join(" ".join(parser.text).split())


def test_a_run_that_has_not_started_and_one_without_a_step():
    assert "has not started" in page.render([])
    assert "training" in page.render([HEAD])
    assert "<script>alert" not in page.render([{**HEAD, "benchmark": "<script>alert(1)"}])


def test_curves_over_steps_and_time_and_across_a_resume():
    first = list(records(10))
    resumed = [{**HEAD, "step": 10, "seconds": 5.0}, *[r for r in records() if r["step"] > 10]]
    for across, last in (("steps", 20), ("time", 10.0)):
        charts = page.charts([*first, *resumed], HEAD, across)
        assert [c.title for c in charts] == [
            *("top-1 accuracy in %", "training loss", "learning rate", "examples per second")
        ]
        assert charts[0].x.high == last and all(c.marks == (50.0,) for c in charts)
        assert [dot[:2] for dot in charts[0].lines[0].dots] == [
            (25 * i, round(100 - charts[0].y(10 * i), 3)) for i in range(1, 5)
        ]


def test_the_smoothed_curve_is_the_corrected_moving_average():
    points = [(float(i), 3.0) for i in range(100)]
    assert [y for _, y in page.smoothed(points)] == pytest.approx([3.0] * 100)
    noisy = [(float(i), float(i % 2)) for i in range(1000)]
    assert abs(page.smoothed(noisy)[-1][1] - 0.5) < 0.05


def test_progress_inside_a_block_is_part_of_the_curve_until_the_block_is_done():
    live = [{"kind": "progress", "step": s, "seconds": s / 2, "loss": 5.0} for s in (10, 22)]
    charts = page.charts([*records(), *live], HEAD, "steps")
    assert charts[1].lines[0].path.count("L") == 20


def test_the_loss_of_evaluations_is_drawn_beside_the_training_s():
    with_loss = [{**r, "details": {"loss": 3.0}} if r["kind"] == "evaluation" else r for r in records()]
    (losses,) = (chart for chart in page.charts(with_loss, HEAD, "steps") if chart.title == "loss")
    count = sum(r["kind"] == "evaluation" for r in with_loss)
    assert [line.name for line in losses.lines][-1] == "evaluation" and len(
        losses.lines[-1].dots
    ) == count > 0
    assert losses.y.high >= 3.0


def test_the_newest_run_of_a_folder_is_found(tmp_path):
    with pytest.raises(UserError, match="no history of a run"):
        command.find(tmp_path)
    history = write(tmp_path / "history_3.jsonl", records())
    assert command.find(tmp_path) == history == command.find(tmp_path / "result_3.txt.partial")
    assert command.find(history) == history
    with pytest.raises(UserError, match="history_4.jsonl: no such file"):
        command.find(tmp_path / "result_4.txt")
    with pytest.raises(UserError, match="x: no such file"):  # No file can have this name.
        command.find(tmp_path / ("x" * 300))


def shown_by_tensorboard(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    return {e.step: e.value for e in board.Scalars(tag)}


def test_tensorboard_shows_what_the_history_has(tmp_path, capsys):
    """Also after another conversion into the same folder, of a run with fewer steps."""
    write(tmp_path / "history_0.jsonl", records())
    board = tmp_path / "board"
    parse = argparse.ArgumentParser()
    report.add_arguments(parse)
    for steps in (20, 10):
        write(tmp_path / "history_0.jsonl", records(steps))
        assert report.run(parse.parse_args([str(tmp_path), f"--tensorboard={board}"])) == 0
        assert capsys.readouterr().out == f"{board}\n"
        losses = {r["step"]: r["loss"] for r in records(steps) if r["kind"] == "train"}
        assert shown_by_tensorboard(board, "train/loss") == pytest.approx(losses)
        values = {r["step"]: r["value"] for r in records(steps) if r["kind"] == "evaluation"}
        assert shown_by_tensorboard(board, "evaluation/top-1 accuracy") == pytest.approx(values)
    assert shown_by_tensorboard(board, "train/learning_rate") == pytest.approx(
        dict.fromkeys(range(1, 11), 0.1)
    )


def test_tensorboard_follows_a_history_that_grows_and_repeats_steps(tmp_path):
    first, again = list(records(20)), list(records(20, loss=lambda step: 3.0 + step))
    early = [r for r in first if r["step"] <= 10]
    writer = tensorboard.Writer(tmp_path)
    for state in (first[:7], first, [*early, *(r for r in again if r["step"] > 10)]):
        writer.write(state)
        losses = {r["step"]: r["loss"] for r in state if r["kind"] == "train"}
        assert shown_by_tensorboard(tmp_path, "train/loss") == pytest.approx(losses)
    writer.close()


def test_events_that_cannot_be_written_are_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file/board: cannot write"):
        tensorboard.Writer(tmp_path / "file/board")
    history = write(tmp_path / "history_0.jsonl", [{"kind": "train", "step": 1, "seconds": 1.0, "loss": 1.0}])
    options = argparse.Namespace(result=history, follow=False, tensorboard=tmp_path / "board")
    with pytest.raises(UserError, match="history_0.jsonl: its records cannot be drawn: KeyError: 'time'"):
        command.run(options)
