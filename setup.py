"""Builds the wheel, in which every package is a subpackage of timetotrain; the sources stay where they are.

A checkout's packages are resnet, common, compliance, ...; the wheel's are timetotrain.resnet, timetotrain.common,
timetotrain.compliance, .... Imports, and commands in texts, are rewritten as files are copied. pyproject.toml holds all
other metadata.
"""

from __future__ import annotations

import ast
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
# The place of `timetotrain.` in `-m resnet`, in a docstring, a message, a page or a script.
_COMMAND = re.compile(rf"(?<=-m )(?=(?:{'|'.join(PARTS)})\b)".encode())
# A script's way to timetotrain/, beside its own folder in a checkout, around it in the wheel.
_BESIDE = re.compile(rb"(?<=/\.\./)timetotrain/(?=\w+\.sh)")
# Left out of the wheel's data: setup.sh (installs a checkout's lock file), modules (copied apart), other non-sources.
_LEFT_OUT = ("setup.sh", "*.py", "*.pyc", ".*", "*~")


def packages() -> dict[str, str]:
    """Returns {name in the wheel: folder}; every folder with an __init__.py is a package."""
    folders = {}
    for part in (NAME, *PARTS):
        for path in sorted((ROOT / part).rglob("__init__.py")):
            folder = path.parent.relative_to(ROOT).as_posix()
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


def with_commands(text: bytes) -> bytes:
    """Returns a text with its commands (`python -m resnet`) and paths of scripts changed to the wheel's."""
    return _BESIDE.sub(b"", _COMMAND.sub(f"{NAME}.".encode(), text))


def with_imports(source: bytes, path: str) -> bytes:
    """Returns a module's source with its imports renamed to the wheel's packages; line numbers stay the same.

    Raises:
      SetupError: an import that cannot be renamed: `import resnet.task` without `as`, which binds the name of a package
        that the wheel does not have; several names after one `import`; or a statement over several lines.
    """
    lines = source.splitlines(keepends=True)
    nodes = [n for n in ast.walk(ast.parse(source, path)) if isinstance(n, (ast.Import, ast.ImportFrom))]
    # From the end, so that the columns of earlier imports on the same line stay valid.
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        change = _change(node, path)
        if change:
            line, at = lines[node.lineno - 1], node.col_offset
            old, new = (text.encode() for text in change)
            if not line.startswith(old, at):
                raise SetupError(f"{path}:{node.lineno}: write it as `{change[0]}`, on one line")
            lines[node.lineno - 1] = line[:at] + new + line[at + len(old) :]
    return b"".join(lines)


def _change(node: ast.Import | ast.ImportFrom, path: str) -> tuple[str, str] | None:
    """Returns how an import statement begins, and how it begins in the wheel; None where it stays the same."""
    if isinstance(node, ast.ImportFrom):
        ours = not node.level and (node.module or "").split(".")[0] in PARTS
        return (f"from {node.module} import", f"from {NAME}.{node.module} import") if ours else None
    if not any(alias.name.split(".")[0] in PARTS for alias in node.names):
        return None
    (first, *others) = node.names
    if others or ("." in first.name and not first.asname):
        raise SetupError(
            f"{path}:{node.lineno}: write `from PACKAGE import NAME`, which the wheel can rename"
        )
    if first.asname:
        return f"import {first.name} as", f"import {NAME}.{first.name} as"
    return f"import {first.name}", f"from {NAME} import {first.name}"


class BuildPackages(build_py):
    """Copies packages and data files, with imports and commands renamed to the wheel's."""

    def run(self) -> None:
        # Files of an earlier build would go into the wheel.
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def build_module(self, module: str, module_file: str, package: str) -> tuple[str, bool]:
        target, copied = super().build_module(module, module_file, package)
        source = Path(module_file).read_bytes()
        Path(target).write_bytes(with_commands(with_imports(source, module_file)))
        return target, copied

    def build_package_data(self) -> None:
        super().build_package_data()
        for _, source, folder, names in self.data_files:
            for name in names:
                Path(folder, name).write_bytes(with_commands(Path(source, name).read_bytes()))


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
