"""`--system=here` on data sets of different sizes and class counts: quality beside a trivial answer's, at three rates.

    python -m lab.bench.here [--sets ssd/nuclei resnet/shapes-4] [--parts 1 0.333 3] [--minutes=40] [--keep=DIR]

Runs are cut to a part of the epochs that `here` chooses; its schedule is stretched to them. A run is repeated only with
--again. Runs for which --minutes of processor time do not suffice stand in the result as not run, with an estimate.
Exits with 1 if a run at the chosen rate is no better than the trivial answer or falls back.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from common.config import automatic, benchmarks
from common.errors import UserError
from lab.bench.files_to_prediction import timetotrain
from lab.bench.harness import arguments, own_sets
from lab.bench.harness.results import head, write
from lab.bench.harness.scripts import status_of
from timetotrain.run import outcome

OUTPUT = "here.json"
PARTS = (1.0, 1 / 3, 3.0)
RATE = "optimizer.base_learning_rate"


@dataclasses.dataclass(frozen=True)
class Set:
    """A data set for a benchmark.

    Attributes:
      benchmark: the benchmark.
      name: name for people.
      files: fills a folder; returns the arguments of `timetotrain data`.
      cut: part of the epochs that `here` chooses.
      minutes: estimate of a run's processor time.
      real: whether it comes from a published data set.
    """

    benchmark: str
    name: str
    files: Callable[[Path], list[Path]]
    cut: float
    minutes: float
    real: bool = False


def _sets(benchmark: str, **found: tuple[str, Callable[[Path], list[Path]], float, float]) -> dict[str, Set]:
    return {
        f"{benchmark}/{key.replace('_', '-')}": Set(benchmark, *values, real=not key.startswith("made"))
        for key, values in found.items()
    }


_P = functools.partial
SETS = {
    **_sets(
        "ssd",
        nuclei=("nuclei of the 2018 Data Science Bowl", own_sets.nuclei, 0.2, 2.0),
        coco=("200 pictures of COCO, its 8 largest classes", _P(own_sets.coco, most=8), 0.6, 6.0),
        made_3=("generated shapes", _P(own_sets.objects, classes=3, count=150), 0.3, 1.5),
        made_12=("generated shapes", _P(own_sets.objects, classes=12, count=300), 0.3, 2.0),
    ),
    **_sets(
        "maskrcnn",
        nuclei=("nuclei of the 2018 Data Science Bowl", own_sets.nuclei, 0.1, 4.0),
        coco=("200 pictures of COCO, its 8 largest classes", _P(own_sets.coco, most=8), 0.6, 6.0),
        made_3=("generated shapes", _P(own_sets.objects, classes=3, count=120), 0.2, 3.0),
        made_12=("generated shapes", _P(own_sets.objects, classes=12, count=240), 0.2, 3.0),
    ),
    **_sets(
        "resnet",
        tiny_imagenet=("a part of Tiny ImageNet", _P(own_sets.tiny_imagenet, classes=20, each=100), 0.3, 2.0),
        ucf101=("frames of UCF101", _P(own_sets.frames, classes=10, each=60), 0.3, 1.5),
        made_2=("generated shapes", _P(own_sets.photographs, classes=2, each=40), 0.3, 1.0),
        made_16=("generated shapes", _P(own_sets.photographs, classes=16, each=40), 0.3, 1.5),
    ),
    **_sets(
        "tsm_kinetics",
        ucf101=("UCF101", _P(own_sets.ucf101, classes=10, each=60), 0.2, 2.0),
        ucf101_3=("UCF101, 3 classes", _P(own_sets.ucf101, classes=3, each=30), 0.2, 1.0),
        made_2=("generated movements", _P(own_sets.clips, classes=2, each=30), 0.3, 1.0),
        made_6=("generated movements", _P(own_sets.clips, classes=6, each=30), 0.3, 1.5),
    ),
    **_sets(
        "transformer",
        multi30k=("Multi30k, English to German", _P(own_sets.multi30k, count=4000), 0.2, 4.0),
        multi30k_back=("Multi30k, German to English", _P(own_sets.multi30k, count=1000, back=True), 0.2, 3.0),
        made_50=("made-up words", _P(own_sets.sentences, words=50, count=1000), 0.3, 2.0),
        made_500=("made-up words", _P(own_sets.sentences, words=500, count=3000), 0.3, 3.0),
    ),
    **_sets(
        "gnmt",
        multi30k=("Multi30k, English to German", _P(own_sets.multi30k, count=4000), 0.2, 4.0),
        multi30k_back=("Multi30k, German to English", _P(own_sets.multi30k, count=1000, back=True), 0.2, 3.0),
        made_50=("made-up words", _P(own_sets.sentences, words=50, count=1000), 0.3, 2.0),
        made_500=("made-up words", _P(own_sets.sentences, words=500, count=3000), 0.3, 3.0),
    ),
}


def identity(key: str, part: float) -> str:
    """Returns the name of a run, as result files have it."""
    return f"{key} {part:.3g}"


def records(key: str, folder: Path) -> Path:
    """Returns the set's records in `folder`; converts the files if they are not there.

    Raises:
      UserError: the files are missing, or the conversion failed.
    """
    case, out = SETS[key], folder / "records"
    if not (out / "held_out.done").is_file():
        sources = case.files(folder / "files")
        timetotrain("data", case.benchmark, *sources, out, "--no-page")
        (out / "held_out.done").touch()
    return out


def measure(key: str, part: float, folder: Path) -> dict[str, Any]:
    """Trains at `part` of the chosen rate; returns the row.

    Raises:
      UserError: a command failed.
    """
    case, before = SETS[key], _processor()
    data_dir = records(key, folder)
    config, _ = automatic.configure(
        benchmarks.module(case.benchmark, "presets"), [], None, None, str(data_dir)
    )
    about = json.loads((data_dir / "description.json").read_text(encoding="utf-8"))
    whole = config.train_epochs
    epochs = max(2.0, float(round(whole * case.cut)))
    rate = config.optimizer.base_learning_rate
    results = folder / f"results-{part:.3g}"
    flags = {"train_epochs": epochs, "epochs_per_block": max(1.0, epochs // 5)}
    if part != 1:
        flags[RATE] = part * rate
    began = _processor()
    timetotrain(
        *("run", case.benchmark, "--system=here", "--seed=0", f"--data_dir={data_dir}"),
        *(f"--result_dir={results}", *(f"--config.{name}={value}" for name, value in flags.items())),
    )
    ending = outcome.read(results / "here" / case.benchmark / "result_0.txt")
    if ending is None:
        raise UserError(f"{results}: no log of a run that ended")
    row = {
        "set": key,
        "part": part,
        "run": True,
        "real": case.real,
        "classes": len([label for label in about["labels"] if label != "background"]),
        "train": about["split"]["train"],
        "rate": part * rate,
        "epochs": epochs,
        "of_epochs": whole,
        "evaluations": list(ending.evaluations),
        "baseline": about["baseline"],
        "verdict": verdict(case.benchmark, ending, about["baseline"]["value"]),
        "minutes": round((_processor() - began) / 60, 2),
    }
    return row | {"all_minutes": round((_processor() - before) / 60, 2)}


def verdict(benchmark: str, ending: outcome.Ending, least: Any) -> str:
    """Says how a run's qualities stand to the trivial answer's: as the run itself does, see `ending.against`."""
    from timetotrain.run import ending as endings

    config = benchmarks.module(benchmark, "presets").PRESETS["cpu-tiny"]
    lines = endings.against(config, {"value": least, "what": ""}, ending.evaluations, ending.diverged)
    warning = next((line for line in lines if line.startswith("warning")), "")
    words = {"diverged": "diverged", "no better": "no better", "fell": "fell back"}
    return next((found for word, found in words.items() if word in warning), "better")


def _processor() -> float:
    """Returns the seconds of processor time of finished children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def waiting(rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each run of SETS at PARTS that was not run, with an estimate of its minutes."""
    made = []
    for part, key in itertools.product(PARTS, SETS):
        if identity(key, part) not in rows:
            alike = rows.get(identity(key, 1.0))
            minutes = alike["minutes"] if alike else SETS[key].minutes
            made.append({"set": key, "part": part, "run": False, "minutes": minutes})
    return made


def put(rows: Mapping[str, Mapping[str, Any]], output: Path) -> None:
    """Writes the result file: the runs in a fixed order, then those that were not run."""
    done = sorted(rows.values(), key=lambda row: (row["part"], list(SETS).index(row["set"])))
    write({**head(), "rows": [*done, *waiting(rows)]}, output)


def main() -> int:
    parser = arguments.parser(__doc__, OUTPUT)
    add = parser.add_argument
    add("--sets", nargs="+", choices=list(SETS), default=list(SETS), metavar="SET", help="default: all")
    add("--parts", nargs="+", type=float, default=list(PARTS), help="of the chosen rate; default: 1, 1/3, 3")
    add("--minutes", type=float, default=40.0, help="of processor time, in all; default: %(default)s")
    add("--keep", type=Path, metavar="DIR", help="keep files, records and results there")
    add("--again", action="store_true", help="repeat runs that the result file has")
    options = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    if options.output.is_file():
        found = json.loads(options.output.read_text(encoding="utf-8"))["rows"]
        rows = {identity(row["set"], row["part"]): row for row in found if row["run"]}
    wanted = [(key, part) for part in options.parts for key in options.sets]
    with tempfile.TemporaryDirectory(prefix="timetotrain-here-") as temporary:
        for key, part in wanted:
            name = identity(key, part)
            if (name in rows and not options.again) or _processor() / 60 + SETS[
                key
            ].minutes > options.minutes:
                continue
            folder = (options.keep or Path(temporary)) / key
            folder.mkdir(parents=True, exist_ok=True)
            rows[name] = row = measure(key, part, folder)
            print(f"{name}: {row['verdict']}, {row['evaluations']}, {row['minutes']} minutes", flush=True)
            put(rows, options.output)
    put(rows, options.output)
    return int(any(row["verdict"] != "better" for row in rows.values() if row["part"] == 1))


if __name__ == "__main__":
    sys.exit(status_of(main))
