"""Lists the test files that `make quick` leaves out: python -m tools.slow_tests REPORT.xml ... > tests/slow.txt

The reports come from `make test` and `make test-all`, each with `ARGS=--reports=DIR`, on two quiet cores.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

# Limit on a test file's seconds, including set-up. It keeps `make quick` near five minutes.
LIMIT = 7.0
# Slower files that `make quick` runs nevertheless: the one that tests the whole core.
KEPT = ("tests/common/train/test_core.py",)
HEAD = "# Test files that take more than {limit:g} s on two quiet cores; `python -m tools.slow_tests` renews this list."


def seconds(reports: Sequence[Path]) -> Counter[str]:
    """{test file: seconds of its tests} from pytest's JUnit reports."""
    times: Counter[str] = Counter()
    for case in (case for report in reports for case in ElementTree.parse(report).iter("testcase")):
        names = case.attrib["classname"].split(".")
        while names and not Path(*names).with_suffix(".py").is_file():
            names.pop()
        if names:
            times[Path(*names).with_suffix(".py").as_posix()] += float(case.attrib["time"])
    return times


def main(argv: list[str]) -> int:
    if not argv or argv[0].startswith("-"):
        print(__doc__)
        return 0 if argv in (["--help"], ["-h"]) else 2
    slow = sorted(
        name
        for name, time in seconds([Path(name) for name in argv]).items()
        if time > LIMIT and name not in KEPT
    )
    print("\n".join([HEAD.format(limit=LIMIT), *slow]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
