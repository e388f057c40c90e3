"""Prints what extras of pyproject.toml install, separated by spaces: python tools/packages.py [--alone] EXTRA...

The project's own dependencies come first, unless --alone leaves them out. The lock file, used as a constraint, pins
the transitive dependencies.
"""

import sys
import tomllib
from pathlib import Path

_PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def packages(extras: list[str], alone: bool = False) -> list[str]:
    """Returns requirements such as "numpy==2.4.6", each once; `alone` omits the project's own dependencies.

    Raises SystemExit if pyproject.toml has no such extra.
    """
    project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]
    by_extra = project["optional-dependencies"]
    for extra in extras:
        if extra not in by_extra:
            raise SystemExit(f"error: {extra}: no such extra in {_PYPROJECT}; it has {', '.join(by_extra)}")
    requirements = [
        *([] if alone else project["dependencies"]),
        *(package for extra in extras for package in by_extra[extra]),
    ]
    return list(dict.fromkeys(requirements))


if __name__ == "__main__":
    print(*packages([word for word in sys.argv[1:] if word != "--alone"], "--alone" in sys.argv))
