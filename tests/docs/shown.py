"""Compares the output that a page shows with what its command prints."""

import re

# Times, speeds and memory differ from run to run, losses and accuracies from machine to machine. All else is compared.
_VARIES = re.compile(
    r"\d+(?:[.,]\d+)*(?= (?:s|min|ms|minutes|GiB|CPU cores|examples/s)\b)"
    r"|(?<=accuracy )\d+(?:\.\d+)?|(?<=loss )\d+(?:\.\d+)?|(?<=score    )[\d.]+"
)


def plain(text: str) -> str:
    """Returns the text without the numbers that vary."""
    return _VARIES.sub("N", text)


def missing(shown: str, printed: str) -> list[str]:
    """Returns the lines of `shown` that `printed` lacks; a line that ends in "..." may go on."""
    have = plain(printed).splitlines()

    def is_there(line: str) -> bool:
        start, dots, _ = plain(line).partition("...")
        return any(text.startswith(start) if dots else text.rstrip() == start.rstrip() for text in have)

    return [line for line in shown.splitlines() if not is_there(line)]
