"""timetotrain systems: list | show NAME | detect | validate FILE... | compile BENCHMARK"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import systems
from common import machine_tools
from common.errors import Parser, UserError, answering
from common.files import whole
from compliance.log.rules import ruleset_name
from compliance.submission.published_tables import other_spellings
from systems.schema import FIELDS, NAMES, NEWEST, validate
from timetotrain.machines import compile as compile_

_FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch", "jax": "JAX"}


@answering()
def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 on success, 1 if `validate` finds faults, 2 for wrong usage or unreadable input, 130 after Ctrl-C."""
    # A terminal that cannot show a character shows an escape instead.
    sys.stdout.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    # argparse takes words after `--` right behind the benchmark only.
    at = words.index("--") if words[:1] == ["compile"] and "--" in words else len(words)
    args = parser().parse_args(words[:at])
    if words[at + 1 :]:
        args.flags = [*args.flags, *words[at + 1 :]]
    return args.run(args)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    whole = Parser(prog="timetotrain systems", description="MLPerf system descriptions.")
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("list", help="all systems with their sizes")
    command.set_defaults(run=_list)
    command = commands.add_parser("show", help="one system, field by field")
    command.add_argument("name", metavar="NAME", help="a name from `list`, or `local` for this machine")
    command.add_argument("--json", action="store_true", help="the JSON as it goes into a submission")
    command.set_defaults(run=_show)
    command = commands.add_parser("detect", help="describe this machine")
    command.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write here, not to standard output"
    )
    package = "the Python package that trains, for the field framework: tensorflow, torch, jax"
    command.add_argument("--framework", metavar="PACKAGE", help=package)
    command.set_defaults(run=_detect)
    command = commands.add_parser("validate", help="check description files")
    command.add_argument("files", metavar="FILE", nargs="+", type=Path)
    command.add_argument(
        "--ruleset",
        type=ruleset_name,
        default=NEWEST,
        help="the round, which fixes the words for `status` (%(default)s)",
    )
    command.add_argument(
        "--draft", action="store_true", help="allow empty fields that a submission must fill (submitter, ...)"
    )
    command.set_defaults(run=_validate)
    compile_.add(commands)
    return whole


def _list(args: argparse.Namespace) -> int:
    rows = [("NAME", "NODES", "ACCELERATORS", "MODEL", "STATUS")]
    for name in systems.names():
        if name == systems.LOCAL:
            rows.append((name, "", "", "this machine, detected when used", ""))
            continue
        description = systems.load(name)
        nodes, accelerators = systems.size(description)
        model = description["accelerator_model_name"] or description["host_processor_model_name"] or "CPU"
        rows.append((name, _number(nodes), _number(accelerators), model, description["status"]))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    for row in rows:
        start, end = row[0].ljust(widths[0]), "  ".join(row[i].ljust(widths[i]) for i in (3, 4))
        print(f"{start}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {end}".rstrip())
    return 0


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)


def _show(args: argparse.Namespace) -> int:
    description = systems.load(args.name)
    if args.json:
        print(_json(description))
        return 0
    width = max(map(len, NAMES))
    for field in FIELDS:
        print(f"{field.name:<{width}}  {description[field.name] or '-'}")
    return 0


def _detect(args: argparse.Namespace) -> int:
    description, _ = systems.detect()
    # Which program trains is not seen from here: an installed framework may be another one.
    description["framework"] = _framework(args.framework) if args.framework else ""
    missing = systems.missing(description)
    if args.output is None:
        print(_json(description))
    else:
        try:
            with whole(args.output) as file:
                file.write_text(_json(description) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"{args.output}: cannot write ({error.strerror}); give another -o FILE") from None
        print(f"Wrote {args.output}.")
    about = {field.name: field.about for field in FIELDS}
    print(f"A person must give {len(missing)} fields:", file=sys.stderr)
    for name in missing:
        print(f"  {name:<34} {about[name]}", file=sys.stderr)
    return 0


def _framework(package: str) -> str:
    """Returns a framework's name and version. Raises UserError if the package is not installed here."""
    version = machine_tools.versions(package).get(package)
    if version is None:
        raise UserError(f"--framework {package}: not installed here; name a Python package, as in torch")
    return f"{_FRAMEWORKS.get(package, package)} {version}"


def _validate(args: argparse.Namespace) -> int:
    if not _is_ruleset(args.ruleset):
        raise UserError(f"--ruleset {args.ruleset!r}: write the round's version, e.g. 0.7.0")
    wrong = 0
    for path in args.files:
        problems = validate(systems.read(path), args.ruleset, submission=not args.draft)
        for problem in problems:
            print(f"{path}: {problem}")
        for field, name, other in other_spellings(systems.read(path)):
            print(f"{path}: note: {field}: {name!r}; earlier rounds write {other!r}")
        if not problems:
            print(f"{path}: good")
        wrong += len(problems)
    return 1 if wrong else 0


def _is_ruleset(text: str) -> bool:
    parts = text.split(".")
    return len(parts) == 3 and all(part.isascii() and part.isdecimal() for part in parts)


def _json(description: dict[str, str]) -> str:
    return json.dumps(description, indent=2, ensure_ascii=False)
