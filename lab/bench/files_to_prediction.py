"""From real files to a prediction on one of them, in four commands: time and quality for each kind of data.

    python -m lab.bench.files_to_prediction [--kinds photographs clips] [--whole] [--keep=DIR]

docs/studies.md names the data. Runs use `--system=here`, which chooses settings from the data. Without --whole they
have fewer epochs, so that each takes minutes. Measuring a kind again replaces its row in the result file. Exits
with 1 if a quality is lower than such a run reaches.
"""

import dataclasses
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from common.config import benchmarks
from common.errors import UserError, answering
from lab.bench.harness import ROOT, scripts
from lab.bench.harness.scripts import head, write
from lab.studies import data
from timetotrain.run import log_ending

OUTPUT = "own_data.json"
_TIMEOUT_SECONDS = 6 * 3600


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of data.

    Attributes:
      benchmark: benchmark to train.
      files: makes or finds the files in a folder: ([arguments of `timetotrain data`], a file to predict on).
      answer: key of a prediction.
      name: name of the data set; "" for generated files.
      epochs: epochs of a run of minutes.
      least: quality, in the log's unit, that such a run reaches; better than guessing.
    """

    benchmark: str
    files: Callable[[Path], tuple[list[Path], Path]]
    answer: str
    name: str = ""
    epochs: int = 2
    least: float = 0.0


@dataclasses.dataclass(frozen=True)
class Answered:
    """Results of four commands: predictions, end of the run, seconds per command, load averages before the run."""

    answers: list[dict[str, Any]]
    ending: log_ending.Ending
    seconds: dict[str, float]
    load: Sequence[float]


def _tiny_imagenet(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("tiny_imagenet_20")
    return [source], next((source / "val").glob("*/*.JPEG"))


def _nuclei(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("dsb2018_256")
    return [source], next((source / "images").glob("*.png"))


def _multi30k(folder: Path) -> tuple[list[Path], Path]:
    source, new = data.unpack("text") / "multi30k", folder / "new.en"
    new.write_bytes(b"".join(gzip.decompress((source / "val.en.gz").read_bytes()).splitlines(True)[:8]))
    return [source / "train.en.gz", source / "train.de.gz"], new


def _ucf101(_: Path) -> tuple[list[Path], Path]:
    source = data.unpack("ucf101_10_128")
    return [source / "metadata" / "clips.csv"], next(source.glob("*/*.mp4"))


REAL = {
    "clips": Case("tsm_kinetics", _ucf101, "times", "10 classes of UCF101", 16, 0.2),
    "photographs": Case("resnet", _tiny_imagenet, "classes", "20 classes of Tiny ImageNet", 4, 0.15),
    "masks": Case("maskrcnn", _nuclei, "objects", "nuclei, Data Science Bowl 2018", 4, 0.05),
    "boxes": Case("ssd", _nuclei, "objects", "nuclei, Data Science Bowl 2018", 10, 0.05),
    "sentences": Case("transformer", _multi30k, "translation", "Multi30k, English to German", 3, 0.01),
}


def timetotrain(*words: str | Path) -> float:
    """Runs a command and returns its seconds.

    Raises UserError: the command failed; the message has the end of its output.
    """
    line = [sys.executable, "-m", "timetotrain", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable}
    began = time.monotonic()
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS
    )
    if done.returncode:
        raise UserError(f"{' '.join(line)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return time.monotonic() - began


def four_commands(case: Case, folder: Path, flags: Sequence[str] = ()) -> Answered:
    """Goes from files to a prediction in `folder`; `flags` are flags of the run.

    If a command already succeeded in `folder`, it does not run again, and its seconds are kept.

    Raises UserError: a command failed, or the run's log has no end.
    """
    sources, new = case.files(folder)
    places = {name: folder / name for name in ("records", "checkpoints", "results", "model")}
    answers = folder / "answers.json"
    outputs = [f"--checkpoint_dir={places['checkpoints']}", f"--result_dir={places['results']}"]
    commands = {
        "data": [case.benchmark, *sources, places["records"]],
        "run": [case.benchmark, f"--data_dir={places['records']}", *outputs, *flags],
        "export": [places["checkpoints"], places["model"]],
        "predict": [places["model"], new, "--json", answers],
    }
    record = folder / "commands.json"
    done = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    for verb, words in commands.items():
        line = [str(word) for word in words]
        if verb not in done or done[verb]["words"] != line:
            load = os.getloadavg()
            done[verb] = {"words": line, "load": load, "seconds": timetotrain(verb, *line)}
            record.write_text(json.dumps(done, indent=1), encoding="utf-8")
    seconds = {verb: done[verb]["seconds"] for verb in commands}
    ending = log_ending.read(places["results"] / "here" / case.benchmark / "result_0.txt")
    if ending is None:
        raise UserError(f"{places['results']}: no log of a run that ended")
    return Answered(json.loads(answers.read_text(encoding="utf-8")), ending, seconds, done["run"]["load"])


def best(case: Case, ending: log_ending.Ending) -> log_ending.Value:
    """Returns a run's best evaluation; `timetotrain export` uses the same one."""
    return max(ending.evaluations, key=_measure(case).score)


def _measure(case: Case) -> Any:
    return benchmarks.module(case.benchmark, "presets").Config.quality


def shortened(case: Case) -> list[str]:
    """Returns the flags for a run that takes minutes."""
    values = {
        "train_epochs": case.epochs,
        "epochs_per_block": max(1, case.epochs // 2),
        "first_block_epochs": 0,
    }
    return [f"--config.{field}={value}" for field, value in values.items()]


def measure(kind: str, folder: Path, whole: bool = False) -> dict[str, Any]:
    """Returns the row of a kind of data; fills `folder` with records, checkpoints, results and model.

    Raises UserError: the data are missing, or a command failed.
    """
    case = REAL[kind]
    steps = four_commands(case, folder, [] if whole else shortened(case))
    about = json.loads(Path(folder, "records", "description.json").read_text(encoding="utf-8"))
    ran = json.loads(next(Path(folder, "results").rglob("run.json")).read_text(encoding="utf-8"))
    if not steps.answers or case.answer not in steps.answers[0]:
        raise UserError(f"{kind}: the answer has no {case.answer}: {steps.answers[:1]}")
    quality = best(case, steps.ending)
    return {
        "kind": kind,
        "benchmark": case.benchmark,
        "data": case.name,
        "train": about["split"]["train"],
        "eval": about["split"]["eval"],
        "epochs": find(ran, "train_epochs"),
        "shortened": not whole,
        "seconds": {verb: round(value, 1) for verb, value in steps.seconds.items()},
        "minutes": round(steps.ending.minutes, 2),
        "quality": quality,
        "least": case.least,
        "shown": _measure(case).shown(quality),
        "baseline": about["baseline"],
        "outlook": find(ran, "outlook"),
        "load": steps.load,
    }


def reached(row: dict[str, Any]) -> bool:
    """Whether every quality in a row is as good as such a run must be."""
    quality = row["quality"]
    return min(quality.values() if isinstance(quality, dict) else [quality]) >= row["least"]


def find(value: Any, name: str) -> Any:
    """Returns the first entry `name` of nested dictionaries, or None."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return next((found for part in value.values() if (found := find(part, name)) is not None), None)


@answering()
def main() -> int:
    parser = scripts.parser(__doc__, OUTPUT)
    parser.add_argument("--kinds", nargs="+", choices=list(REAL), default=list(REAL), help="default: all")
    parser.add_argument("--whole", action="store_true", help="as many epochs as `here` chooses")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep records, checkpoints and models there")
    options = parser.parse_args()
    before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.is_file() else {}
    rows = {row["kind"]: row for row in before.get("rows", ())}
    for kind in options.kinds:
        with tempfile.TemporaryDirectory(prefix="timetotrain-own-") as temporary:
            folder = options.keep / kind if options.keep else Path(temporary)
            folder.mkdir(parents=True, exist_ok=True)
            rows[kind] = row = measure(kind, folder, options.whole)
        verdict = "" if reached(row) else f", below {row['least']}"
        print(f"{kind}: {row['shown']} after {row['minutes']} minutes, {row['seconds']}{verdict}", flush=True)
        ordered = [rows[name] for name in REAL if name in rows]
        write({**before, **head(), "rows": ordered}, options.output)
    return int(not all(reached(rows[kind]) for kind in options.kinds))


if __name__ == "__main__":
    sys.exit(main())
