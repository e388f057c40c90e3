"""Tells what changed between two rounds' rules for one benchmark: `timetotrain rules BENCHMARK --since=RULESET`."""

from collections.abc import Iterator
from typing import NamedTuple

from common.errors import UserError
from compliance.described_rules import describe_key, sections_of
from compliance.hints import listed
from compliance.log import rules, written_rules
from compliance.log.formulas import describe_formula, plain
from compliance.submission import rcp, rounds

_SHOWN = 6
_ONE_OF = "one of "


class Change(NamedTuple):
    """One difference between two rounds: its subject (a key of the log, or a fact), and what each round says.

    `old` or `new` is "" if that round says nothing about the subject.
    """

    subject: str
    old: str
    new: str

    @property
    def text(self) -> str:
        """Returns what changed, without the subject."""
        if not self.old:
            return f"new: {self.new}"
        if not self.new:
            return f"gone; was {self.old}"
        return f"{self.new}; was {self.old}"


def changes(benchmark: str, old: str, new: str, division: str = "closed") -> list[Change]:
    """Returns what the rules of round `new` say of a benchmark's logs and submissions, and those of `old` do not.

    Compares the keys of a log with their values and places, the target, the number of runs, the data, the evaluations,
    the hyperparameters that the written rules fix, and the batch sizes that have reference convergence points.

    Args:
      old, new: two of `rules.RULESETS`, `old` the earlier.

    Returns one change for each subject that differs; a single one about the benchmark if `old` does not have it.
    Raises UserError if `new` has no rules for the benchmark, or `old` is not earlier than `new`.
    """
    if rules.RULESETS.index(old) >= rules.RULESETS.index(new):
        raise UserError(f"--since={old}: is not earlier than {new}; name an earlier round")
    if not rules.has_rules(old, benchmark, division):
        return [Change(benchmark, "", f"{old} has no rules for it; `rules {benchmark}` lists those of {new}")]
    before, after = (_facts(benchmark, ruleset, division) for ruleset in (old, new))
    names = [*after, *(name for name in before if name not in after)]
    pairs = ((name, before.get(name, {}), after.get(name, {})) for name in names)
    return [Change(name, *_differing(was, now)) for name, was, now in pairs if was != now]


def _differing(was: dict[str, str], now: dict[str, str]) -> tuple[str, str]:
    """Returns what two rounds say of a subject, without what both say; {aspect: text} of each, {} for nothing."""
    if not was or not now:
        return tuple("; ".join(one.values()) for one in (was, now))
    texts: tuple[list[str], list[str]] = [], []
    for aspect in dict.fromkeys(("occurs", *was, *now)):
        pair = [one.get(aspect, "optional" if aspect == "occurs" else "anything") for one in (was, now)]
        if pair[0] == pair[1]:
            continue
        choices = [one.removeprefix(_ONE_OF).split(", ") for one in pair if one.startswith(_ONE_OF)]
        if len(choices) == 2:
            more, fewer = ([one for one in a if one not in b] for a, b in (choices[::-1], choices))
            parts = [f"{word} {', '.join(some)}" for word, some in (("also", more), ("not", fewer)) if some]
            pair = ["without" if more else "with them", " and ".join(parts)]
        for text, part in zip(texts, pair):
            text.append(part)
    return tuple("; ".join(one) for one in texts)


def as_text(benchmark: str, old: str, new: str, division: str = "closed") -> str:
    """Formats the changes for people. Raises UserError as `changes`."""
    together: dict[str, list[str]] = {}
    for change in changes(benchmark, old, new, division):
        together.setdefault(change.text, []).append(change.subject)
    lines = [f"  {', '.join(subjects)}: {text}" for text, subjects in together.items()]
    return "\n".join([f"{benchmark} {division}: what {new} changed since {old}", *(lines or ["  nothing"])])


def _facts(benchmark: str, ruleset: str, division: str) -> dict[str, dict[str, str]]:
    """Returns {subject: {aspect: what the round says of it}}."""
    info, sections = sections_of(ruleset, division, benchmark)
    facts = {
        key: describe_key(spec) or {"value": "any value"}
        for _, keys in sections
        for key, spec in keys.items()
    }
    facts.get("submission_benchmark", {}).pop("value", None)  # the list of the round's benchmarks
    texts = {" or ".join(keys): "at least one" for keys in rules.load(ruleset, "common").get("one_of", ())}
    texts["runs of a score"] = str(rounds.required_runs(benchmark, ruleset))
    if info.get("offline_evaluation"):
        texts["evaluations"] = "may follow run_stop, which has the time of the update that met the target"
    if division == "closed":
        texts |= dict(_written_facts(benchmark, ruleset))
        points = [
            f"{point.batch:g} ({plain(round(point.least))})" for point in rcp.pruned(benchmark, ruleset)
        ]
        if points:
            texts["batch sizes with a convergence point, and the least mean there"] = listed(points, _SHOWN)
    return facts | {name: {"": text} for name, text in texts.items()}


def _written_facts(benchmark: str, ruleset: str) -> Iterator[tuple[str, str]]:
    """Yields what the written rules fix, and the stock checker does not look at."""
    for key in sorted(written_rules.keys(ruleset, benchmark)):
        if phrase := written_rules.fixed(ruleset, benchmark, key):
            yield f"{key}, by the written rules", phrase
    if (row := written_rules.schedule(ruleset, benchmark)) is not None:
        skipped = f", without the first {describe_formula(row['skip'])}" if "skip" in row else ""
        frequency = f"every {describe_formula(row['every'])} {row['unit']}{skipped}"
        yield "evaluations, by the written rules", frequency
