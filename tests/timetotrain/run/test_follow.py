"""Tests the page that follows a run, and the examples beside it."""

import argparse
import contextlib
import dataclasses
import html.parser
import http.client
import importlib
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

from common.errors import UserError
from timetotrain import report
from timetotrain.follow import command, page, server, tensorboard
from timetotrain.run import examples

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


def written(path, content):
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
    shown = Whole()
    text = page.render(list(records()))
    shown.feed(text)
    assert shown.open == []
    words = " ".join(" ".join(shown.text).split())
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
    shown = Whole()
    shown.feed(page.render(run))
    words = " ".join(" ".join(shown.text).split())
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
    shown = Whole()
    shown.feed(page.render(run))
    assert "examples/s 51.0" in " ".join(" ".join(shown.text).split())


def test_a_run_that_has_not_started_and_one_without_a_step():
    assert "has not started" in page.render([])
    assert "training" in page.render([HEAD])
    assert "<script>alert" not in page.render([{**HEAD, "benchmark": "<script>alert(1)"}])


def test_curves_over_steps_and_time_and_across_a_resume():
    first = list(records(10))
    resumed = [{**HEAD, "step": 10, "seconds": 5.0}, *[r for r in records() if r["step"] > 10]]
    for across, last in (("steps", 20), ("time", 10.0)):
        drawn = page.charts([*first, *resumed], HEAD, across)
        assert [c.title for c in drawn] == [
            *("top-1 accuracy in %", "training loss", "learning rate", "examples per second")
        ]
        assert drawn[0].x.high == last and all(c.marks == (50.0,) for c in drawn)
        assert [dot[:2] for dot in drawn[0].lines[0].dots] == [
            (25 * i, round(100 - drawn[0].y(10 * i), 3)) for i in range(1, 5)
        ]


def test_the_smoothed_curve_is_the_corrected_moving_average():
    points = [(float(i), 3.0) for i in range(100)]
    assert [y for _, y in page.smoothed(points)] == pytest.approx([3.0] * 100)
    noisy = [(float(i), float(i % 2)) for i in range(1000)]
    assert abs(page.smoothed(noisy)[-1][1] - 0.5) < 0.05


def test_progress_inside_a_block_is_part_of_the_curve_until_the_block_is_done():
    live = [{"kind": "progress", "step": s, "seconds": s / 2, "loss": 5.0} for s in (10, 22)]
    drawn = page.charts([*records(), *live], HEAD, "steps")
    assert drawn[1].lines[0].path.count("L") == 20


def test_the_loss_of_evaluations_is_drawn_beside_the_training_s():
    with_loss = [{**r, "details": {"loss": 3.0}} if r["kind"] == "evaluation" else r for r in records()]
    (drawn,) = (chart for chart in page.charts(with_loss, HEAD, "steps") if chart.title == "loss")
    count = sum(r["kind"] == "evaluation" for r in with_loss)
    assert [line.name for line in drawn.lines][-1] == "evaluation" and len(drawn.lines[-1].dots) == count > 0
    assert drawn.y.high >= 3.0


def test_the_newest_run_of_a_folder_is_found(tmp_path):
    with pytest.raises(UserError, match="no history of a run"):
        command.find(tmp_path)
    history = written(tmp_path / "history_3.jsonl", records())
    assert command.find(tmp_path) == history == command.find(tmp_path / "result_3.txt.partial")
    assert command.find(history) == history
    with pytest.raises(UserError, match="history_4.jsonl: no such file"):
        command.find(tmp_path / "result_4.txt")
    with pytest.raises(UserError, match="x: no such file"):  # No file can have this name.
        command.find(tmp_path / ("x" * 300))


def test_the_server_shows_the_page_and_its_pictures_and_nothing_else(tmp_path):
    history = written(tmp_path / "history_0.jsonl", records())
    (tmp_path / "secret.txt").write_text("no")
    image = np.full([8, 8, 3], 200, np.uint8)
    seen = [examples.classified({"image": image, "label": 1, "scores": np.array([0.9, 0.1])}, ("cat", "dog"))]
    examples.write(tmp_path / "examples_0", seen, 20)
    (tmp_path / "examples_0/link.jpg").symlink_to(tmp_path / "secret.txt")
    with serving(history) as base:
        text = urllib.request.urlopen(base + "/").read().decode()
        assert "cat (90 %), is dog" in text and 'src="examples_0/000.jpg?20"' in text
        assert urllib.request.urlopen(base + "/examples_0/000.jpg?20").read()[:2] == b"\xff\xd8"
        for path in ("/secret.txt", "/examples_0/../secret.txt", "/examples_0/link.jpg", "/history_0.jsonl"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(base + path)
        port = int(base.rpartition(":")[2])
        with pytest.raises(UserError, match=rf"--port={port}: .*give another --port"):
            server.Server(server.Page(history, command.drawn), port)


@contextlib.contextmanager
def serving(history, draw=command.drawn):
    """Serves a page; yields its address."""
    with server.Server(server.Page(history, draw), 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def status(base, host):
    request = urllib.request.Request(base, headers={"Host": host})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code


def test_the_server_answers_to_this_machines_names_alone(tmp_path):
    """A page of another host, whose name an attacker lets point here, reads nothing."""
    with serving(written(tmp_path / "history_0.jsonl", records())) as base:
        port = base.rpartition(":")[2]
        hosts = {
            "127.0.0.1": 200,
            f"localhost:{port}": 200,
            "evil.example": 403,
            f"127.0.0.1.evil.example:{port}": 403,
        }
        assert {host: status(base, host) for host in hosts} == hosts


def test_many_requests_share_one_drawing_until_the_history_grows(tmp_path, monkeypatch):
    history, drawings = written(tmp_path / "history_0.jsonl", records(10)), []

    def draw(path, seen):
        drawings.append(len(seen))
        return command.drawn(path, seen)

    monkeypatch.setattr(server, "DRAW_SECONDS", 0.0)
    page_of = server.Page(history, draw)
    threads = [threading.Thread(target=page_of) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawings) == 1
    written(history, records(20))
    page_of._drawn_at = 0.0
    page_of()
    assert len(drawings) == 2


def test_half_sent_requests_hold_no_more_than_some_threads_and_not_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "CONNECTION_SECONDS", 1.0)
    monkeypatch.setattr(server, "CONNECTIONS", 4)
    before = threading.active_count()
    with serving(written(tmp_path / "history_0.jsonl", records())) as base:
        address = ("127.0.0.1", int(base.rpartition(":")[2]))
        opened = [socket.create_connection(address) for _ in range(12)]
        for one in opened:
            one.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        for one in opened:  # Either refused at once, or ended after a second.
            one.settimeout(60)
            assert one.recv(1) == b""
        # A request's thread and its timer.
        assert threading.active_count() <= before + 1 + 2 * 4
        for _ in range(100):  # A thread may still be ending.
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError):
                assert status(base, "localhost") == 200
                break
            time.sleep(0.1)
        else:
            pytest.fail("no connection became free")


def shown_by_tensorboard(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder))
    board.Reload()
    return {e.step: e.value for e in board.Scalars(tag)}


def test_tensorboard_shows_what_the_history_has(tmp_path, capsys):
    """Also after another conversion into the same folder, of a run with fewer steps."""
    written(tmp_path / "history_0.jsonl", records())
    board = tmp_path / "board"
    parse = argparse.ArgumentParser()
    report.add_arguments(parse)
    for steps in (20, 10):
        written(tmp_path / "history_0.jsonl", records(steps))
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
    history = written(
        tmp_path / "history_0.jsonl", [{"kind": "train", "step": 1, "seconds": 1.0, "loss": 1.0}]
    )
    options = argparse.Namespace(result=history, serve=False, follow=False, tensorboard=tmp_path / "board")
    with pytest.raises(UserError, match="history_0.jsonl: its records cannot be drawn: KeyError: 'time'"):
        command.run(options)


def test_detections_are_right_where_every_object_is_found_once():
    image = np.zeros([10, 10, 3], np.uint8)
    objects = [((0.0, 0.0, 0.5, 0.5), 3), ((0.5, 0.5, 1.0, 1.0), 7)]

    def one(boxes, categories, scores):
        found = {"boxes": np.array(boxes), "categories": np.array(categories), "scores": np.array(scores)}
        return examples.detected({"image": image, **found}, objects, {3: "disc", 7: "cross"})

    both = [(0.0, 0.0, 0.5, 0.45), (0.5, 0.5, 1.0, 1.0)]
    assert one(both, [3, 7], [0.9, 0.8]).right
    unsure = one(both, [3, 7], [0.9, 0.4])
    assert not unsure.right and unsure.text == "1 of 2 objects found"
    twice = one([*both, both[0]], [3, 7, 3], [0.9, 0.8, 0.7])
    assert not twice.right and twice.text == "2 of 2 objects found, 1 detection of none"
    assert not one(both, [7, 7], [0.9, 0.8]).right
    assert examples.overlap((0, 0, 1, 1), (0, 0.5, 1, 1.5)) == pytest.approx(1 / 3)
    assert examples.overlap((0, 0, 1, 1), (2, 2, 3, 3)) == 0


SMALL = {
    "mnist": {"lstm_units": 8},
    "resnet": {"width": 4, "image_size": 32, "space_to_depth": True, "eval_batch_size": 4},
    "tsm_kinetics": {"width": 4, "eval_batch_size": 2},
}


@pytest.mark.parametrize("benchmark", SMALL)
def test_pictures_labels_and_scores_of_a_batch(benchmark):
    """The classifiers show a batch as a person sees it, with the scores of the evaluation."""
    from common.distributed.replicas.single import Single
    from common.layers.precision import precision

    preset = importlib.import_module(f"{benchmark}.presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(preset, global_batch_size=4, **SMALL[benchmark])
    task = importlib.import_module(f"{benchmark}.task").Task(config, None)
    assert task.has_pictures
    model = task.build(Single(), precision("fp32"))
    batch = next(iter(task.synthetic_eval_input(4)))
    seen = {name: value.numpy() for name, value in task.look(model, batch).items()}
    assert seen["image"].ndim == 4 and seen["image"].shape[-1] in (1, 3)
    np.testing.assert_allclose(seen["scores"].sum(-1), 1, rtol=1e-4)
    said = seen["scores"].argmax(-1)
    correct = int(task.evaluate(model, batch).sums["correct"])
    assert correct == int(np.sum(said == seen["label"]))
    assert np.trace(task.evaluate(model, batch).sums["confused"].numpy()) == correct
    one = {name: value[0] for name, value in seen.items()}
    one["image"] = one["image"].astype(np.uint8)
    example = examples.classified(one, ())
    assert example.right == bool(said[0] == seen["label"][0])
