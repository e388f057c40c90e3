"""Speed of reading and decoding training frames, and of converting videos, against bare loops over the same files.

Runs on one core, on generated videos as large as Kinetics' (340 x 256); see contenders/video_frames.py.

    python -m lab.bench.frames [--rounds N] [--quick] [--output FILE]
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.bench.contenders import video_frames as frames
from lab.bench.harness import scripts
from lab.bench.harness.rounds import command, compare
from lab.bench.harness.scripts import head, write

BAR = 0.8  # Minimum ratio of our frames per second to those of the first bare loop.
# Ours, the bare loop for the bar, another bare loop.
DECODERS = (
    ("train_input", "libjpeg_turbo", "libjpeg_turbo_scaled"),
    ("convert", "ffmpeg_jpeg", "ffmpeg"),
)

STEPS = {"train_input": 40, "convert": 8}


def decoding(videos: frames.Videos, steps: Mapping[str, int], rounds: int) -> dict[str, dict[str, Any]]:
    """Measures frames per second and core of ours and of the bare loops."""
    measured = {}
    with tempfile.TemporaryDirectory() as folder:
        frames.draw(Path(folder), videos)
        for names in DECODERS:
            each = frames.BATCH * frames.FRAMES if names[0] == "train_input" else videos.frames
            called = {
                "ours" if name == names[0] else name: command("video_frames", name, folder, one_core=True)
                for name in names
            }
            rows = compare(called, steps[names[0]], rounds)
            for row in rows.values():
                row["frames_per_second_and_core"] = each * steps[names[0]] / row["seconds"]
            over = rows[names[1]]["ratio_to_ours"]
            measured[names[0]] = {
                "contenders": rows,
                "frames_per_step": each,
                "peer": names[1],
                "over_peer": over,
                "bar": BAR,
                "meets_bar": over >= BAR,
            }
    return measured


def main() -> None:
    parser = scripts.parser(__doc__, "frames.json", rounds=5)
    scripts.add_quick(parser)
    options = parser.parse_args()
    videos, steps, rounds = frames.Videos(), STEPS, options.rounds
    if options.quick:
        videos, steps, rounds = frames.Videos(2, 72), dict.fromkeys(STEPS, 1), 1
    result: dict[str, Any] = {
        **head("av", "opencv-python-headless"),
        "settings": {"rounds": rounds},
        "frames": decoding(videos, steps, rounds),
    }
    for name, row in result["frames"].items():
        for contender, one in row["contenders"].items():
            speed = f"{one['frames_per_second_and_core']:.0f} frames/s and core"
            print(f"{name:12} {contender:20} {speed}, {1 / one['ratio_to_ours']:.2f} x ours")
        print(f"{name:12} {row['over_peer']:.2f} x {row['peer']} (bar {BAR})", flush=True)
    if not options.quick:
        write(result, options.output)


if __name__ == "__main__":
    main()
