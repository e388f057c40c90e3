"""Tells before a run starts what its log will need: the round, the keys of the header, the unit of its progress."""

from collections.abc import Collection

from common.errors import UserError
from compliance.hints import hint
from compliance.log import rules
from compliance.log.find_round import required

# What the loop logs later, and what is made of other records.
_LATER = frozenset(
    ("init_stop", "run_start", "run_stop", "block_start", "block_stop", "epoch_start", "epoch_stop")
    + ("eval_start", "eval_stop", "eval_accuracy", "aggregated_eval_accuracy")
)
_UNITS = ("samples_count", "step_num", "epoch_num")


def newest_round(benchmark: str, division: str) -> str:
    """Returns the newest round with rules for a benchmark.

    Raises UserError if no round has it.
    """
    rounds = [one for one in rules.RULESETS[1:] if rules.has_rules(one, benchmark, division)]
    if not rounds:
        names = sorted({name for one in rules.RULESETS[1:] for name in rules.benchmarks(one)})
        raise UserError(f"no round has {division} rules for {benchmark!r}; {hint((benchmark,), names)}")
    return rounds[-1]


def progress_unit(ruleset: str, division: str, benchmark: str) -> str:
    """Returns what a benchmark's evaluations count: "samples_count", "step_num" or "epoch_num".

    Raises UserError if the round has no rules for the benchmark.
    """
    section = rules.section_name(ruleset, division, benchmark)
    if section not in rules.names(ruleset):
        reason = f"ruleset {ruleset} has no {division} rules for {benchmark!r}"
        raise UserError(f"{reason}; name another --ruleset")
    info = rules.load(ruleset, section)
    if "aggregates" in info:
        return info["aggregates"]["by"]
    spec = info["keys"].get("eval_accuracy", {})
    names = {*spec.get("metadata", {}), *(name for some in spec.get("metadata_any", ()) for name in some)}
    return next((unit for unit in _UNITS if unit in names), "epoch_num")


def missing_keys(ruleset: str, division: str, benchmark: str, logged: Collection[str]) -> list[str]:
    """Returns the keys of a header that the round's rules ask for and `logged` lacks, sorted."""
    present = {*logged} | _LATER
    one_of = rules.load(ruleset, "common").get("one_of", ())
    lacking = sorted(required(ruleset, division, benchmark) - present)
    return lacking + [" or ".join(keys) for keys in one_of if present.isdisjoint(keys)]


def evaluations_needed(ruleset: str, division: str, benchmark: str, key: str) -> int:
    """Returns how many records of a key the round's rules ask for, at least 1."""
    section = rules.load(ruleset, rules.section_name(ruleset, division, benchmark))
    occurs = section["keys"].get(key, {}).get("occurs")
    return occurs["at_least"] if isinstance(occurs, dict) else 1
