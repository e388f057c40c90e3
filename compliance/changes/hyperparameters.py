"""Sorts a log's settings into the classes of the borrowing rule.

mlcommons/training_policies, training_rules.adoc, "Hyperparameter Borrowing": a borrower may change the batch size
(local batch size, global batch size, batchnorm span) and must replace all other hyperparameters as a group.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from common.errors import UserError
from compliance.log import rules, written
from compliance.log.formulas import compile_condition, describe_formula
from compliance.log.predicates import compile_predicate, describe
from compliance.report.output import value
from compliance.submission import scores
from compliance.submission.coherence import is_placeholder
from compliance.submission.runs import Run, read_run
from compliance.submission.tree_files import place_of

BATCH, GROUP, FIXED, SYSTEM = "batch", "group", "fixed", "system"

# training_rules.adoc, "Hyperparameter Borrowing": "local batch size, global batch size, batchnorm span"; the steps
# between two updates make the local batch.
_BATCH = frozenset((
    "global_batch_size", "local_batch_size", "micro_batch_size", "model_bn_span", "gradient_accumulation_steps",
))  # fmt: skip
_GROUP = re.compile(
    r"(.*_)?opt_.*|lora_.*|(max_)?sequence_length|max_steps|max_samples|dropout|moe_aux_loss_coeff"
    r"|num_warmup_steps|start_warmup_step"
)
# training_rules.adoc, "Hyperparameter Borrowing" and "Benchmark specific rules for deprecated benchmarks".
NO_BORROWING = frozenset(("llama31_405b", "gpt3"))


@dataclass(frozen=True)
class Side:
    """The runs of one folder: what all of them log before `run_start`.

    `settings` holds the values that the runs share, `differing` the names of settings that differ between them.
    """

    path: Path
    benchmark: str
    org: str
    division: str
    ruleset: str
    runs: tuple[Run, ...]
    settings: Mapping[str, object]
    differing: tuple[str, ...]


def read(path: Path, ruleset: str | None = None) -> Side:
    """Reads a folder of runs, or one log.

    Raises UserError: no such folder, no logs in it, or logs of several benchmarks.
    """
    runs = tuple(read_run(file, ruleset) for file in scores.result_files(path))
    first = runs[0]
    names = sorted({run.benchmark or "none" for run in runs})
    if len(names) > 1:
        raise UserError(f"{path}: logs of several benchmarks ({', '.join(names)}); name one folder of runs")
    said = [{**_of_header(run), **run.settings} for run in runs]
    keys = dict.fromkeys(key for one in said for key in one)
    differing = tuple(key for key in keys if any(one.get(key) != said[0].get(key) for one in said))
    shared = {key: value for key, value in said[0].items() if key not in differing}
    org, division = (str(first.header.get(f"submission_{name}", "")) for name in ("org", "division"))
    place = place_of(path.resolve())
    if is_placeholder(org) and place is not None:
        org = place[0].name  # the submitter's folder: a launcher left the name in the logs open
    return Side(path, first.benchmark, org, division, first.ruleset, runs, shared, differing)


def _of_header(run: Run) -> dict[str, object]:
    names = ("global_batch_size", "opt_name", "train_samples", "eval_samples")
    return {name: run.header[name] for name in names if name in run.header}


def kind(name: str, benchmark: str, ruleset: str) -> str:
    """Returns BATCH, FIXED (the rules give its value), GROUP (to be replaced with the others), or SYSTEM."""
    if name in _BATCH:
        return BATCH
    if rule(name, benchmark, ruleset):
        return FIXED
    return GROUP if _GROUP.fullmatch(name) else SYSTEM


def rule(name: str, benchmark: str, ruleset: str) -> str:
    """Returns what the closed division's rules fix a hyperparameter to, as a phrase; "" if they leave it open."""
    if not _GROUP.fullmatch(name):
        return ""
    spec = _spec(name, benchmark, ruleset)
    if "equal" in spec.get("value", {}):
        return describe(spec["value"])
    if spec.get("formula"):
        return " and ".join(describe_formula(formula) for formula in spec["formula"])
    return written.fixed(ruleset, benchmark, name)


def side_obeys(name: str, side: Side) -> bool:
    """Whether every run of a side has the value that the rules fix."""
    every = (_of_header(run) | run.settings for run in side.runs)
    return all(obeys(name, settings, side.benchmark, side.ruleset) for settings in every)


def obeys(name: str, settings: Mapping[str, object], benchmark: str, ruleset: str) -> bool:
    """Whether a hyperparameter has the value that the rules fix; True if they leave it open or it is not logged."""
    if name not in settings or not _GROUP.fullmatch(name):
        return True
    spec, value = _spec(name, benchmark, ruleset), settings[name]
    if "value" in spec and not compile_predicate(spec["value"])(value):
        return False
    if any(not compile_condition(formula)(value, {}, dict(settings)) for formula in spec.get("formula", ())):
        return False
    return all(one.key != name for one in written.differences(ruleset, benchmark, settings))


def _spec(name: str, benchmark: str, ruleset: str) -> dict:
    return rules.metric(ruleset, benchmark).get("keys", {}).get(name, {})


def shown(side: Side, name: str) -> str:
    """Returns a side's value of a hyperparameter as text; "" if it logs none."""
    if name in side.differing:
        return "differs between its runs"
    return value(side.settings[name]) if name in side.settings else ""
