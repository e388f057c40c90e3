"""Explains the rule files in words, for `explain RULE` and `rules BENCHMARK DIVISION`."""

import argparse

from common.errors import UserError
from compliance.described_rules import describe_key, sections_of, target_in_words
from compliance.findings import texts
from compliance.hints import hint
from compliance.log import rules
from compliance.log.whole_run import describe_schedule

_ASPECTS = ("occurs", "value", "metadata", "order", "target")
# The MLPerf benchmarks whose logs this project writes, as round 0.7 requires them.
_TRAINED_HERE = ("resnet", "ssd", "maskrcnn", "transformer", "gnmt")


# -------------------------------------------------------------------------------------------------- explain


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="a rule id from a finding, or a key; `all` lists them")


def explain(rule: str) -> str:
    """Describes in words what a rule requires.

    Raises UserError if the rule is unknown; the message suggests the nearest names.
    """
    about = texts()
    key, _, aspect = rule.partition(".")
    lines: list[str] = []
    if rule in about["rules"]:
        lines.append(f"{rule}\n  {about['rules'][rule]}")
    files = [
        (ruleset, name, rules.load(ruleset, name)["keys"][key])
        for ruleset in (rules.RULESETS if not aspect or aspect in _ASPECTS else ())
        for name in sorted(rules.names(ruleset), key=lambda name: (name != "common", name))
        if key in rules.load(ruleset, name)["keys"]
    ]
    if files and (not aspect or any(aspect in describe_key(spec) for _, _, spec in files)):
        lines.append(f"{key}: {about['keys'].get(key, 'a hyperparameter that the rules name')}.")
        rows: dict[tuple[str, str], list[str]] = {}  # a rule file's description -> the rounds that share it
        for ruleset, name, spec in files:
            words = describe_key(spec)
            phrases = [f"{part} {text}" for part, text in words.items() if not aspect or part == aspect]
            if phrases:
                rows.setdefault((name, "; ".join(phrases)), []).append(ruleset)
        for (name, sentence), rounds in rows.items():
            first = rules.RULESETS.index(rounds[0])
            follow = len(rounds) > 1 and rounds == list(rules.RULESETS[first : first + len(rounds)])
            span = f"{rounds[0]}-{rounds[-1]}" if follow else ", ".join(rounds)
            lines.append(f"  {span:<14} {name:<24} {sentence}")
        if aspect in about["aspects"]:
            lines.append(f"  {about['aspects'][aspect]}")
    if not lines:
        ids = known_rules()
        raise UserError(f"there is no rule {rule!r}; {hint((rule, key), ids, '`explain all` lists them')}")
    return "\n".join(lines)


def known_rules() -> list[str]:
    """Returns every id that `explain` takes: keys, their aspects, and the rules that have no key."""
    ids = dict.fromkeys(texts()["rules"])
    for ruleset in rules.RULESETS:
        for name in sorted(rules.names(ruleset)):
            for key, spec in rules.load(ruleset, name)["keys"].items():
                ids[key] = None
                ids.update(dict.fromkeys(f"{key}.{aspect}" for aspect in describe_key(spec)))
    return list(ids)


def run_explain(options: argparse.Namespace) -> int:
    """Prints the explanation."""
    print("\n".join(sorted(known_rules())) if options.rule == "all" else explain(options.rule))
    return 0


# ---------------------------------------------------------------------------------------------------- rules


def add_rules_arguments(parser: argparse.ArgumentParser) -> None:
    without = "resnet, ssd, ...; without it: the rounds and their benchmarks"
    parser.add_argument("benchmark", metavar="BENCHMARK", nargs="?", help=without)
    parser.add_argument("division", metavar="DIVISION", nargs="?", default="closed", help="closed or open")
    newest = (
        "default: the benchmark's newest with rules; without --since 0.7.0 for those that this project trains"
    )
    parser.add_argument("--ruleset", **rules.CHOICE, help=newest)
    since = "show only what the rules of --ruleset changed since this round"
    parser.add_argument("--since", **rules.CHOICE, metavar="RULESET", help=since)


def overview(ruleset: str | None = None) -> str:
    """Lists the rounds and their benchmarks; with `ruleset`, only that round."""
    lines = []
    for one in (ruleset,) if ruleset else rules.RULESETS:
        own_names = rules.load(one, "common").get("own_benchmarks", ())
        names = [name for name in rules.benchmarks(one, "closed") if name not in own_names]
        closed = [name for name in names if rules.has_rules(one, name)]
        lines.append(f"{one}  {', '.join(closed)}")
        more = [name for name in rules.benchmarks(one, "open") if name not in (*names, *own_names)]
        lines += [f"       open only: {', '.join(more)}"] if more else []
        bare = [name for name in names if name not in closed]
        lines += [f"       named, without rules: {', '.join(bare)}"] if bare else []
        lines += [f"       this project's own: {', '.join(own_names)}"] if own_names else []
    return "\n".join([*lines, f"MLPerf HPC is not covered ({', '.join(rules.HPC_BENCHMARKS)})."])


def table(ruleset: str, division: str, benchmark: str) -> str:
    """Lists the keys that a log must have, with their allowed values.

    Raises UserError if the ruleset does not know the benchmark or division.
    """
    info, sections = sections_of(ruleset, division, benchmark)
    lines = [f"{benchmark} {division}, ruleset {ruleset} ({info['source']})"]
    for title, keys in sections:
        lines += ["", title, *_rows(keys)]
    for keys in rules.load(ruleset, "common").get("one_of", ()):
        lines.append(f"  {' or '.join(keys)}: at least one")
    return "\n".join([*lines, "", *_facts(info)])


def _rows(keys: dict[str, dict]) -> list[str]:
    rows = []
    for key, spec in keys.items():
        words = describe_key(spec)
        occurs = words.pop("occurs", "optional")
        rest = "; ".join(f"{aspect}: {text}" for aspect, text in words.items()) or "any value"
        rows.append(f"  {key:<42} {occurs:<13} {rest}")
    return rows


def _facts(info: dict) -> list[str]:
    lines = [f"runs: {info['runs']}, scored by their olympic mean"] if "runs" in info else []
    if "goal" in info:
        lines.append(f"target: {target_in_words(info['goal'])} (used for the run's status)")
    schedule = info.get("schedule", {})
    if "epochs" in schedule:
        lines.append(f"evaluation after epochs {describe_schedule(schedule)}")
    elif schedule:
        every = "every epoch" if schedule["every"] == 1 else f"every {schedule['every']} epochs"
        lines.append(f"evaluation after {every}")
    for key, sizes in info.get("samples", {}).items():
        lines.append(f"{key}: {' or '.join(f'{size:,}' for size in sizes)}")
    return lines


def run_rules(options: argparse.Namespace) -> int:
    """Prints the table of a benchmark, or of all; returns 0. Raises UserError if the options name what no rule has."""
    if options.benchmark is None:
        if options.since:
            raise UserError(
                "--since: name the benchmark whose rules to compare, as in `rules llama31_8b --since=5.1.0`"
            )
        print(overview(options.ruleset))
    else:
        name = options.benchmark
        having = [one for one in rules.rulesets_with(name) if rules.has_rules(one, name)]
        newest = having and (options.since or name not in _TRAINED_HERE)
        ruleset = options.ruleset or (having[-1] if newest else "0.7.0")
        if options.since:
            from compliance.rule_changes import as_text  # needs the convergence points

            print(as_text(name, options.since, ruleset, options.division))
        else:
            print(table(ruleset, options.division, name))
    return 0
