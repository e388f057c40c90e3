"""Turns results of studies and of training on your own data into table rows.

LEGW at other base rates, PTB's settings tried on the validation text, and four commands on your own data.
"""

import json
import statistics

from tools.docs.measurements import ROOT, Table, load

STUDY = ROOT / "lab/studies" / "legw-ptb"
TUNE = STUDY / "tune.json"
_VERBS = ("data", "run", "export", "predict")
# (base rate, base warmup in epochs) -> LEGW's results with them, on the test text. The first pair is the presets'.
BASES = {("0.03", "0.025"): STUDY / "results.json", ("0.1", "0.1"): STUDY / "at-0.1" / "results.json"}
# Flags that every run of the study sets, and the preset's values of the others.
_COMMON = ("legw", "data.eval_split", "num_eval_examples", "quality_target", "division", "precision")
_PRESET = {"schedule.warmup_epochs": "0.025"}


def changes() -> Table:
    """Table of `python -m lab.studies legw-ptb --tune`: at each batch, the best run first.

    Rates and warmups are the base batch's values, which `--config.legw=32` scales.
    """
    runs = json.loads(TUNE.read_text(encoding="utf-8"))
    rows = [
        (str(run["batch"]), _changed(run), f"{run['quality']:.1f}")
        for run in sorted(runs, key=lambda run: (run["batch"], run["quality"]))
    ]
    return ("batch", "changed", "perplexity"), rows


def base_rates() -> Table:
    """Table of LEGW by base rate and batch: mean and standard deviation over seeds."""
    qualities: dict[tuple[str, str], dict[int, list[float]]] = {base: {} for base in BASES}
    for base, path in BASES.items():
        for run in json.loads(path.read_text(encoding="utf-8")):
            if run["method"] == "legw" and run["quality"] is not None:  # None for a run that diverged.
                qualities[base].setdefault(run["batch"], []).append(run["quality"])
    batches = sorted({batch for by_batch in qualities.values() for batch in by_batch})
    rows = [
        (*base, *(_spread(by_batch.get(batch, [])) for batch in batches))
        for base, by_batch in qualities.items()
    ]
    return ("base rate", "base warmup", *map(str, batches)), rows


def _spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}" if values else ""
    return mean + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


def _changed(run: dict) -> str:
    """The settings of a run that differ from the preset's and are not common to all runs."""
    if run["method"] == "base":  # These runs used the preset's warmup of that time.
        return f"`optimizer.base_learning_rate={run['rate']:g}`"
    own = [flag.removeprefix("--config.").split("=") for flag in run["flags"]]
    last = {field: value for field, value in own if field not in _COMMON}  # The last value counts.
    changed = [f"`{field}={value}`" for field, value in last.items() if _PRESET.get(field) != value]
    return ", ".join(changed) or "nothing"


def four_commands() -> Table:
    """Table of lab/bench/files_to_prediction.py: seconds of each command, best quality of a run of a few minutes."""
    rows = []
    for row in load("own_data.json")["rows"]:
        seconds = (f"{row['seconds'][verb]:.0f} s" for verb in _VERBS)
        examples = f"{row['train']:,} and {row['eval']:,}"
        load_before = f"{row['load'][0]:.0f}"
        rows.append(
            (
                row["data"],
                row["benchmark"],
                examples,
                f"{row['epochs']:g}",
                *seconds,
                row["shown"],
                load_before,
            )
        )
    return ("set", "benchmark", "examples", "epochs", *_VERBS, "best", "load"), rows
