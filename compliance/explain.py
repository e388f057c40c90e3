"""Explains the rule files in words, for `explain RULE` and `rules BENCHMARK DIVISION`."""

from __future__ import annotations

import argparse
import sys

from common.errors import UserError
from compliance.findings import texts
from compliance.hints import nearest
from compliance.log import rules
from compliance.log.predicates import describe
from compliance.stock import rulesets_with

_ASPECTS = ("occurs", "value", "metadata", "order", "target")
# Suffixes of the rule ids in findings about rulesets from 1.0.0 on (stock.translate).
_STOCK_ASPECTS = {
    "": "What a log must say of it",
    "occurs": "How often it must be logged",
    "check": "What its value, metadata or place must be",
    "target": "The quality that at least one evaluation must reach",
}


def _files_with(key: str) -> list[tuple[str, str, dict]]:
    return [
        (ruleset, name, rules.load(ruleset, name)["keys"][key])
        for ruleset in rules.OWN_RULESETS
        for name in sorted(rules.names(ruleset), key=lambda name: (name != "common", name))
        if key in rules.load(ruleset, name)["keys"]
    ]


def _target(spec: dict) -> str:
    if "by" in spec:
        return f"{describe(spec['then'])}; from {spec['by']} {spec['less']} on {describe(spec['else'])}"
    return describe(spec)


def _order(spec: dict) -> list[str]:
    parts = [f"after {key}" for key in spec.get("after", ())]
    parts += [f"before {key}" for key in spec.get("not_after", ())]
    if "within" in spec:
        parts.append(f"less than {spec['within']['minutes']} minutes after the first {spec['within']['key']}")
    return parts + [f"not when {condition['say']}" for condition in spec.get("when", ())]


def describe_key(spec: dict) -> dict[str, str]:
    """The rules of one key in words, by aspect."""
    words = {}
    if "occurs" in spec:
        words["occurs"] = spec["occurs"].replace("_", " ")
    for other, value in spec.get("once_if", {}).items():
        words["occurs"] = f"exactly one when {other} is {value}, else none"
    if "value" in spec:
        words["value"] = describe(spec["value"])
    if "metadata" in spec:
        words["metadata"] = ", ".join(
            name + (f" ({describe(predicate)})" if predicate else "")
            for name, predicate in spec["metadata"].items()
        )
    if order := _order(spec):
        words["order"] = "; ".join(order)
    if "target" in spec:
        words["target"] = f"at least one {_target(spec['target'])}"
    return words


# -------------------------------------------------------------------------------------------------- explain


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `explain`."""
    parser.add_argument("rule", metavar="RULE", help="a rule id from a finding, or a key; `all` lists them")


def explain(rule: str) -> str:
    """Describes in words what a rule requires.

    Raises:
      UserError: there is no such rule; the nearest names are given.
    """
    about = texts()
    key, _, aspect = rule.partition(".")
    lines: list[str] = []
    if rule in about["rules"]:
        lines.append(f"{rule}\n  {about['rules'][rule]}")
    files = _files_with(key) if not aspect or aspect in _ASPECTS else []
    if files and (not aspect or any(aspect in describe_key(spec) for _, _, spec in files)):
        lines.append(f"{key}: {about['keys'].get(key, 'a hyperparameter that the rules name')}.")
        rows = []
        for ruleset, name, spec in files:
            words = describe_key(spec)
            said = [f"{part} {text}" for part, text in words.items() if not aspect or part == aspect]
            if said:
                rows.append((ruleset, name, "; ".join(said)))
        lines += [f"  {ruleset}  {name:<22} {said}" for ruleset, name, said in rows]
        if aspect in about["aspects"]:
            lines.append(f"  {about['aspects'][aspect]}")
    if not lines and aspect in _STOCK_ASPECTS and (found := rulesets_with(key)):
        lines.append(
            f"{rule}\n  {_STOCK_ASPECTS[aspect]}, by the stock checker's rules in {', '.join(found)}."
        )
        lines.append("  `check --ruleset` of the log's round shows what it expects and found.")
    if not lines:
        near = nearest(rule, known_rules()) or nearest(key, known_rules())
        hint = f"did you mean {near}?" if near else "`explain all` lists them"
        raise UserError(f"there is no rule {rule!r}; {hint}")
    return "\n".join(lines)


def known_rules() -> list[str]:
    """Every id that `explain` takes: keys, their aspects, and the rules without a key."""
    ids = dict.fromkeys(texts()["rules"])
    for ruleset in rules.OWN_RULESETS:
        for name in sorted(rules.names(ruleset)):
            for key, spec in rules.load(ruleset, name)["keys"].items():
                ids[key] = None
                ids.update(dict.fromkeys(f"{key}.{aspect}" for aspect in describe_key(spec)))
    return list(ids)


def run_explain(options: argparse.Namespace) -> int:
    """Prints the explanation."""
    sys.stdout.reconfigure(errors="backslashreplace")
    print("\n".join(sorted(known_rules())) if options.rule == "all" else explain(options.rule))
    return 0


# ---------------------------------------------------------------------------------------------------- rules


def add_rules_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `rules`."""
    parser.add_argument("benchmark", metavar="BENCHMARK", help="resnet, ssd, ...")
    parser.add_argument("division", metavar="DIVISION", help="closed or open")
    parser.add_argument("--ruleset", choices=rules.OWN_RULESETS, default="0.7.0")


def table(ruleset: str, division: str, benchmark: str) -> str:
    """The keys that a log must have, with their allowed values.

    Raises:
      UserError: the benchmark or division is unknown to the ruleset.
    """
    known = rules.benchmarks(ruleset)
    for word, value, choices in (("benchmark", benchmark, known), ("division", division, rules.DIVISIONS)):
        if value not in choices:
            near = nearest(value, choices)
            hint = f"did you mean {near}?" if near else f"known: {', '.join(choices)}"
            raise UserError(f"ruleset {ruleset} has no {word} {value!r}; {hint}")
    name = rules.benchmark_file(ruleset, division, benchmark)
    info = rules.load(ruleset, name)
    sections = [
        ("every log", {**rules.load(ruleset, "common")["keys"]}),
        (f"{benchmark}, {division}", info["keys"]),
    ]
    for key, spec in info["keys"].items():
        if "selects" in spec:
            for choice in spec["value"]["in"]:
                chosen = rules.load(ruleset, spec["selects"].format(choice))["keys"]
                sections.append((f"{benchmark}, {division}, {key} {choice}", chosen))
    for key in info["keys"]:
        sections[0][1].pop(key, None)
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
        lines.append(f"target: {_target(info['goal'])} (used for the run's status)")
    schedule = info.get("schedule", {})
    if "epochs" in schedule:
        lines.append(f"evaluation after epochs {', '.join(map(str, schedule['epochs']))}")
    elif schedule:
        every = "every epoch" if schedule["every"] == 1 else f"every {schedule['every']} epochs"
        lines.append(f"evaluation after {every}")
    for key, sizes in info.get("samples", {}).items():
        lines.append(f"{key}: {' or '.join(f'{size:,}' for size in sizes)}")
    return lines


def run_rules(options: argparse.Namespace) -> int:
    """Prints the table."""
    sys.stdout.reconfigure(errors="backslashreplace")
    print(table(options.ruleset, options.division, options.benchmark))
    return 0
