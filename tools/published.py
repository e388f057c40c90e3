"""What the scripts tools/published_*.py share: their arguments, their errors, and the folders of the rounds."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from common.errors import UserError


def command(doc: str, arguments: Sequence[str], count: int, write: Callable[..., str | None]) -> int:
    """Calls `write` with the arguments, and prints what it returns; returns the exit status.

    Args:
      doc: the script's docstring, which tells the usage if the number of arguments is not `count`.
      arguments: paths.
      count: the number of arguments.
      write: writes the file; may raise UserError.
    """
    if len(arguments) != count:
        print(doc, file=sys.stderr)
        return 2
    try:
        message = write(*arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if message:
        print(message)
    return 0


def folders(root: Path, rounds: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields (round, its folder below `root`).

    Raises:
      UserError: a round has no folder.
    """
    for name in rounds:
        if not (root / name).is_dir():
            raise UserError(f"{root / name}: no such folder; it has the files of training_results_{name}")
        yield name, root / name
