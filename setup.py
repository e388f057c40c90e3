"""Builds the wheel, in which every package is a subpackage of timetotrain; the sources stay where they are.

A checkout's packages are resnet, common, compliance, ...; the wheel's are timetotrain.resnet, timetotrain.common,
timetotrain.compliance, .... Imports, and commands in texts, are rewritten as files are copied. pyproject.toml holds all
other metadata.
"""

from __future__ import annotations

import glob
import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel
from setuptools.errors import SetupError

NAME = "timetotrain"
ROOT = Path(__file__).resolve().parent
# Top-level packages beside timetotrain itself: the library, systems, the checker and every benchmark.
PARTS = ("common", "compliance", "systems", *sorted(path.parent.name for path in ROOT.glob("*/task.py")))
_PART = "(?:" + "|".join(PARTS) + ")"
# Each on one line, as tests/test_wheel.py checks: how imports begin; commands in a docstring, a message, a page or a
# script; a script's way to timetotrain/, beside its own folder in a checkout, around it in the wheel.
_RENAMED = [
    (re.compile(pattern.encode(), re.MULTILINE), replacement)
    for pattern, replacement in (
        (rf"^( *from )(?={_PART}(?:\.\w+)* import )", rb"\1timetotrain."),
        (rf"^( *)(?=import {_PART}$)", rb"\1from timetotrain "),
        (rf"(?<=-m )(?={_PART}\b)", b"timetotrain."),
        (r"(?<=/\.\./)timetotrain/(?=\w+\.sh)", b""),
    )
]
# Left out of the wheel's data: setup.sh (installs a checkout's lock file), modules (copied apart), other non-sources.
_LEFT_OUT = ("setup.sh", "*.py", "*.pyc", ".*", "*~")


def packages() -> dict[str, str]:
    """Returns {name in the wheel: folder}; every folder with a module is a package."""
    folders = {}
    for part in (NAME, *PARTS):
        for place in sorted({path.parent for path in (ROOT / part).rglob("*.py")}):
            folder = place.relative_to(ROOT).as_posix()
            name = folder.replace("/", ".")
            folders[name if part == NAME else f"{NAME}.{name}"] = folder
    return folders


def data() -> dict[str, list[str]]:
    """Returns {package: its files that are not modules}, at any depth: rules, systems, pages, scripts."""

    def shipped(path: Path) -> bool:
        return path.is_file() and not any(path.match(pattern) for pattern in _LEFT_OUT)

    return {
        NAME if part == NAME else f"{NAME}.{part}": [
            glob.escape(path.relative_to(ROOT / part).as_posix())
            for path in sorted((ROOT / part).rglob("*"))
            if shipped(path)
        ]
        for part in (NAME, *PARTS)
    }


def renamed(text: bytes) -> bytes:
    """Returns a file with its imports, commands (`python -m resnet`) and paths of scripts changed to the wheel's."""
    for pattern, replacement in _RENAMED:
        text = pattern.sub(replacement, text)
    return text


class BuildPackages(build_py):
    """Copies packages and data files, with imports and commands renamed to the wheel's."""

    def run(self) -> None:
        # Files of an earlier build would go into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        target, copied = super().build_module(module, module_file, package)
        Path(target).write_bytes(renamed(Path(module_file).read_bytes()))
        return target, copied

    def build_package_data(self) -> None:
        super().build_package_data()
        for _, source, folder, names in self.data_files:
            for name in names:
                Path(folder, name).write_bytes(renamed(Path(source, name).read_bytes()))


class RefuseEditable(editable_wheel):
    """Refuses an editable installation, which would leave the sources' imports as a checkout needs them."""

    def run(self) -> None:
        raise SetupError("pip install -e: a checkout needs none; run `python -m resnet` in its folder")


if __name__ == "__main__":
    setup(
        packages=list(packages()),
        package_dir=packages(),
        package_data=data(),
        include_package_data=False,
        cmdclass={"build_py": BuildPackages, "editable_wheel": RefuseEditable},
    )
