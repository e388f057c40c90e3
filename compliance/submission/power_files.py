"""Judges the names of a folder's power logs as mlperf_logging's package_checker/power_checker.py does."""

import os
from collections import Counter
from pathlib import Path


def bad_names(folder: Path, logs: list[str]) -> list[str]:
    """Returns the logs whose power files the stock checker refuses: missing, misnumbered, or of another number.

    package_checker/power_checker.py, `check_power`: files `node_<j>` and `sw_<k>` with j and k below their number, and
    as many of each as most runs have.
    """
    bad: set[str] = set()
    counts: dict[str, tuple[int, int]] = {}
    for log in logs:
        place = folder / "power" / Path(log).stem
        try:
            names = os.listdir(place)
        except OSError:
            bad.add(log)
            continue
        numbers = {name: os.path.splitext(name)[0].rpartition("_")[2] for name in names}
        groups = [[text for name, text in numbers.items() if name.startswith(one)] for one in ("node", "sw")]
        counts[log] = len(groups[0]), len(groups[1])
        if any(not text.isdecimal() or int(text) >= len(group) for group in groups for text in group):
            bad.add(log)
    for part in (0, 1):
        usual = Counter(count[part] for count in counts.values()).most_common(1)
        bad |= {log for log, count in counts.items() if count[part] != usual[0][0]}
    return [log for log in logs if log in bad]
