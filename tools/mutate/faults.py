"""Reads the hand-written faults of faults/*.toml, and counts the results of trying them.

Each file holds `[[fault]]` tables:

  name = "lars-momentum-form"
  why = "the pods paper, figures 5 and 6"      # why the original is right
  file = "common/optim/optimizers.py"
  old = '''text that occurs once in the file'''
  new = '''replacement'''
  tests = ["tests/common/optim/test_optimizers.py"]   # files or tests that should notice
  equivalent = "the reason"                    # only where no test can notice
"""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path

from common.files import markdown_table

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "faults"
RESULTS = Path(__file__).parent / "results.json"  # Of `make mutate`, by fault.


@dataclasses.dataclass(frozen=True)
class Fault:
    """A source change that a test should notice.

    Attributes:
      name: unique.
      file: path inside the project.
      old: text that occurs once in the file.
      new: the replacement.
      tests: pytest arguments that select the tests that should notice.
      why: where the correct form is documented.
      equivalent: why no test can notice; '' if one should.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""
    equivalent: str = ""

    def applied(self, text: str) -> str:
        """The file's text with the fault applied. Raises ValueError if `old` does not occur exactly once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {self.file} read {self.old!r}")
        return text.replace(self.old, self.new)


def hand_written() -> list[Fault]:
    """All faults in FOLDER, in file order."""
    faults = []
    for path in sorted(FOLDER.glob("*.toml")):
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            faults.append(Fault(**{**table, "tests": tuple(table["tests"])}))
    return faults


def summary(results: Mapping[str, dict]) -> str:
    """Table of outcomes by folder; a fault whose tests time out counts as survived."""
    folders: dict[str, dict[str, int]] = {}
    for entry in results.values():
        folder = "/".join(entry["file"].split("/")[: 2 if entry["file"].startswith("common/") else 1])
        row = folders.setdefault(folder, dict.fromkeys(("caught", "survived", "equivalent"), 0))
        row[entry["outcome"] if entry["outcome"] in row else "survived"] += 1
    total = {
        name: sum(row[name] for row in folders.values()) for name in ("caught", "survived", "equivalent")
    }
    rows = [(f"`{folder}`", row) for folder, row in sorted(folders.items())] + [("all", total)]
    return markdown_table(("folder", *total), [(name, *map(str, row.values())) for name, row in rows])
