"""Implements `timetotrain diff A B`: two submissions, or two states of one and which of the changes may be sent."""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from compliance.changes import answers
from compliance.changes.answers import ASK, MAY, MAY_NOT, SAME, Change
from compliance.log import rules
from compliance.log.find_round import find, of_folder, of_submission
from compliance.report.output import aligned
from compliance.submission import scores
from compliance.submission.scores import result_folders
from compliance.submission.tree_files import places_of
from compliance.submission.verdict import no_folders

_WORDS = {MAY: "may", MAY_NOT: "MAY NOT", ASK: "ask", SAME: ""}
_CODE_SHOWN = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("a", metavar="TREE_A", type=Path, help="a submitter's folder, or a folder of several: as submitted")
    add("b", metavar="TREE_B", type=Path, help="the same, as it would be sent again")
    add("--ruleset", choices=rules.RULESETS, help="both trees' round; default: what they say")
    add("--all", action="store_true", help="every changed file of code, not the first ones alone")
    add("--format", choices=("text", "json"), default="text", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Prints the differences; returns 1 if one of them may not be sent again, else 0.

    Raises UserError: a tree has no results, or a folder's logs are of several benchmarks.
    """
    rounds, guessed = rounds_of(options.a, options.b, options.ruleset)
    changes, one_submitter = compare(options.a, options.b, rounds)
    if guessed and options.format == "text":
        print(guessed)
    if options.format == "json":
        content = {label: [change._asdict() for change in group] for label, group in changes.items()}
        print(json.dumps(content, indent=2))
    else:
        print(_text(changes, one_submitter, options.all))
    return int(any(change.answer == MAY_NOT for group in changes.values() for change in group))


def rounds_of(a: Path, b: Path, ruleset: str | None = None) -> tuple[tuple[str, str], str]:
    """Returns the rounds of two trees or folders of runs, and a line that says how one was guessed; "" if none was.

    A folder named after its round decides for itself. A side without such a name is of the round of the other, or of
    the newest round that fits the logs of both.
    """
    if ruleset:
        return (ruleset, ruleset), ""
    named = [found and found.ruleset for found in map(of_folder, (a, b))]
    if all(named):
        return tuple(named), ""
    if any(named):
        taken, why = named[0] or named[1], "as the other side's folder says"
    else:
        folders = dict.fromkeys(folder for path in (a, b) for folder in scores.result_folders(path))
        choice = of_submission(find(scores.result_files(folder)[0]) for folder in folders)
        if choice is None:
            return ("", ""), ""
        taken, why = choice.ruleset, choice.reason.replace("; --ruleset takes another", "")
    return tuple(name or taken for name in named), f"round {taken}: {why}; --ruleset names another"


def compare(a: Path, b: Path, rounds: tuple[str, str] | None = None) -> tuple[dict[str, list[Change]], bool]:
    """Returns ({place: differences}, whether both trees are of the same submitters).

    `rounds`: those of both trees; None: as `rounds_of` finds them.

    Places are folders of runs ("system/benchmark"), descriptions and codes. The differences of two submitters have no
    answer, since none of them is sent again.

    Raises UserError: a tree has no results, or a folder's logs are of several benchmarks.
    """
    trees = [_folders(path) for path in (a, b)]
    orgs = [{org for org, _, _ in tree} for tree in trees]
    alone = all(len(one) == 1 for one in orgs)
    names = [
        {("" if alone else org.name, *rest): path for (org, *rest), path in tree.items()} for tree in trees
    ]
    called = [{org.name for org in one} for one in orgs]
    one_submitter = not alone or called[0] == called[1] or _same_org(trees)
    rounds = rounds or rounds_of(a, b)[0]
    later = bool(rounds[0] and rounds[1] and rounds[0] != rounds[1])
    changes: dict[str, list[Change]] = {}
    for key in sorted({*names[0], *names[1]}):
        label = "/".join(part for part in key if part)
        changes[label] = list(_pair(names[0].get(key), names[1].get(key), rounds, later))
    again = later and any(change.name == "sent again" for group in changes.values() for change in group)
    for label, first, second in _beside(orgs, alone):
        changes |= _described(label, first, second, again)
    if not one_submitter:
        unanswered = {"answer": SAME, "why": ""}
        changes = {label: [one._replace(**unanswered) for one in group] for label, group in changes.items()}
    return {label: group for label, group in changes.items() if group}, one_submitter


def _same_org(trees: list[dict]) -> bool:
    """Whether the logs of both trees, each of one submitter, name the same organisation."""
    from compliance.changes import hyperparameters

    said = [hyperparameters.read(next(iter(tree.values()))).org for tree in trees]
    return bool(said[0]) and said[0] == said[1]


def _folders(root: Path) -> dict[tuple[Path, str, str], Path]:
    if folders := places_of(result_folders(root)):
        return folders
    raise no_folders(root)


def _pair(a: Path | None, b: Path | None, rounds: tuple[str, str], later: bool) -> Iterable[Change]:
    if a and b:
        return answers.of_folders(a, b, rounds)
    if later:
        return [Change("folder", "only in one round", "" if b else "there", "there" if b else "", SAME, "")]
    if a:
        return [Change("folder", "withdrawn", "there", "", MAY, "until the final results are due")]
    return [Change("folder", "new", "", "there", MAY_NOT, "no result may be added after the submission")]


def _beside(orgs: list[set[Path]], alone: bool) -> list[tuple[str, Path, Path]]:
    """Returns (label, folder in A, folder in B) of every submitter that both trees have."""
    if alone:
        (first,), (second,) = orgs
        return [("", first, second)]
    names = [{org.name: org for org in one} for one in orgs]
    return [(f"{name}/", names[0][name], names[1][name]) for name in sorted({*names[0]} & {*names[1]})]


def _described(label: str, a: Path, b: Path, again: bool) -> dict[str, list[Change]]:
    changes = {}
    for name in sorted({path.name for org in (a, b) for path in (org / "systems").glob("*.json")}):
        pair = (org / "systems" / name for org in (a, b))
        changes[f"{label}systems/{name}"] = list(answers.of_descriptions(*pair, again))
    return changes | {f"{label}benchmarks": list(answers.of_code(a / "benchmarks", b / "benchmarks"))}


def _text(changes: dict[str, list[Change]], one_submitter: bool, everything: bool) -> str:
    lines = []
    for label, group in changes.items():
        lines.append(label)
        shown = group if everything or group[0].place != "code" else group[:_CODE_SHOWN]
        rows = [(_WORDS[c.answer], c.place, c.name, f"{c.a or '-'} -> {c.b or '-'}", c.why) for c in shown]
        lines += [f"  {line}" for line in aligned(rows)]
        if len(shown) < len(group):
            lines.append(f"  and {len(group) - len(shown)} more files; --all shows them")
    return "\n".join([*lines, _summary(changes, one_submitter)])


def _summary(changes: dict[str, list[Change]], one_submitter: bool) -> str:
    answers = Counter(change.answer for group in changes.values() for change in group)
    if not one_submitter or set(answers) <= {SAME}:
        whose = "of one submitter" if one_submitter else "of two submitters, so nothing is sent again"
        return f"{answers.total()} differences {whose}" if changes else "no difference"
    words = ((MAY, "may"), (ASK, "to ask the review committee about"), (MAY_NOT, "may not"))
    return "sent again: " + ", ".join(f"{answers[one]} {says}" for one, says in words if answers[one])
