"""Tests lab/bench/video.py and frames.py: verdicts on given times, and that every loop over frames runs."""

from __future__ import annotations

import json
import sys

import pytest

from lab.bench import frames, video
from lab.bench.contenders import video_frames

# Seconds of two rounds; the machine is half as fast in the second.
TIMES = {
    ("tsm", "ours"): [1.0, 2.0],
    ("tsm", "torch"): [1.1, 2.2],
    ("i3d_3x3x3", "ours"): [1.5, 3.0],
    ("i3d_3x3x3", "torch"): [1.2, 2.4],
    ("i3d_3x1x1", "ours"): [2.0, 4.0],
    ("i3d_3x1x1", "torch"): [2.0, 4.0],
}


def test_ratios_are_taken_within_rounds() -> None:
    rows = video.summary(TIMES, 4)
    assert rows["tsm"]["ours"]["clips_per_second"] == 4 / 1.5
    assert rows["tsm"]["ours"]["over_i3d_3x1x1"] == 2 and rows["tsm"]["torch"][
        "over_i3d_3x1x1"
    ] == pytest.approx(2 / 1.1)
    assert [row["torch_seconds_over_ours"] for row in rows.values()] == pytest.approx([1.1, 0.8, 1.0])
    assert [row["meets_bar"] for row in rows.values()] == [True, False, True]
    assert [row["paper"]["over_i3d_3x1x1"] for row in rows.values()] == [2.0, 1.5, 1.0]


def test_there_is_no_verdict_without_pytorch() -> None:
    ours = {key: times for key, times in TIMES.items() if key[1] == "ours"}
    rows = video.summary(ours, 4)
    assert {row["meets_bar"] for row in rows.values()} == {
        row["torch_seconds_over_ours"] for row in rows.values()
    }
    assert rows["tsm"]["meets_bar"] is None


def test_cores_that_feed_the_paper_s_clips() -> None:
    found = frames.feeding(339.2)
    assert found["tsm"]["cores"] == pytest.approx(2) and found["i3d_3x1x1"]["frames"] == 32


def test_every_contender_gets_the_same_network() -> None:
    calls = video.commands("train", "fp32", 2, 224, "/torch/python")
    assert list(calls) == [(m, who) for m in video.MODELS for who in ("ours", "torch")]
    for model in video.MODELS:
        own, theirs = calls[model, "ours"], calls[model, "torch"]
        assert own[own.index("tensorflow_video") + 1 :] == theirs[theirs.index("torch_images") + 1 :]
        manifest = json.loads(calls[model, "ours"][-1])
        (clips,) = manifest["programs"][0]["inputs"]
        assert clips["shape"] == [2, {"tsm": 8, "i3d_3x3x3": 16, "i3d_3x1x1": 32}[model], 224, 224, 3]
        assert (manifest["config"]["width"], manifest["config"]["blocks"]) == (64, [3, 4, 6, 3])


class Scripted:
    """A contender whose seconds per step are the length of its name."""

    def __init__(self, name: str, _: list[str]):
        self.name, self.about = name, {"version": "1", "parameters": 5 + (name == "tsm torch")}

    def seconds(self, steps: int) -> float:
        return steps * len(self.name)

    def close(self) -> None:
        pass


def test_a_run_writes_all_of_it_and_refuses_another_network(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(video, "Contender", Scripted)
    output = tmp_path / "video.json"
    monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}"])
    video.main()
    found = json.loads(output.read_text())
    assert found["missing_peers"] == ["torch"] and set(found["networks"]["fp32"]) == {"infer", "train"}
    assert "left out: torch" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench", f"--torch-python={sys.executable}"])
    with pytest.raises(SystemExit, match="tsm: 6 parameters in PyTorch, 5 in ours"):
        video.main()


def test_a_run_says_how_many_cores_feed_the_paper_s_clips(monkeypatch, tmp_path, capsys) -> None:
    made = {
        n: {"contenders": {"ours": {"frames_per_second_and_core": 400.0, "ratio_to_ours": 1}}} for n in "ab"
    }
    made = {"train_input": made["a"], "convert": made["b"]}
    for row in made.values():
        row.update(over_peer=0.9, peer="bare")
    monkeypatch.setattr(frames, "decoding", lambda *_: made)
    output = tmp_path / "frames.json"
    monkeypatch.setattr(sys, "argv", ["bench", f"--output={output}"])
    frames.main()
    found = json.loads(output.read_text())
    assert found["feeding"]["tsm"]["cores"] == pytest.approx(84.8 * 8 / 400)
    assert "convert      0.90 x bare (bar 0.8)" in capsys.readouterr().out


def test_every_loop_over_frames_runs_its_steps(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(video_frames, "BATCH", 2)
    videos = video_frames.Videos(2, 12, 48, 64)
    video_frames.draw(tmp_path, videos)
    decoded, cv2 = [], video_frames.cv2
    imdecode = cv2.imdecode
    monkeypatch.setattr(cv2, "imdecode", lambda *a: decoded.append(imdecode(*a)) or decoded[-1])
    for name, make in video_frames.CONTENDERS.items():
        run = make(tmp_path)
        run(1)
        run(2)
        assert video_frames._version(name)
    # Two loops of three steps of two clips of eight whole frames.
    assert len(decoded) == 2 * 3 * 2 * 8 and {frame.shape for frame in decoded} == {(48, 64, 3)}
