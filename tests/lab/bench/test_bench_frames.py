"""Tests that every loop over frames of lab/bench/frames.py runs its steps."""

from lab.bench.contenders import video_frames


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
