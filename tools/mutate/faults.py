"""Reads the hand-written faults of faults/*.toml.

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
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent / "faults"


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
        """The file's text with the fault applied.

        Raises:
          ValueError: `old` does not occur exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {text.count(self.old)} places in {self.file} read {self.old!r}")
        return text.replace(self.old, self.new)


def hand_written() -> list[Fault]:
    """All faults in FOLDER, in file order."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        for table in tomllib.loads(path.read_text(encoding="utf-8"))["fault"]:
            found.append(Fault(**{**table, "tests": tuple(table["tests"])}))
    return found
