"""Computes compliance/data/published_systems.csv from the published descriptions of rounds v0.6 to v5.1.

    python -m tools.published_systems FOLDER

FOLDER has one folder per round with the submitters' folders from the repository mlcommons/training_results_<round>, of
which only `<org>/systems/<system>.json` is read. The table has the fields that say what the accelerators and hosts are.
Files that are no JSON objects are left out and counted.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from common.files import write_csv
from tools.published import command, folders
from tools.published_scores import ROUNDS as LATER

ROUNDS = ("v0.6", "v0.7", *LATER)
COPIED = (
    *("system_name", "number_of_nodes", "accelerators_per_node", "accelerator_model_name"),
    *("host_processors_per_node", "host_processor_model_name"),
)
FIELDS = ("round", "org", "system", *COPIED)
TARGET = Path(__file__).resolve().parents[1] / "compliance" / "data" / "published_systems.csv"


def rows(root: Path, left_out: list[str]) -> Iterator[tuple[str, ...]]:
    """The rows of all rounds below `root`; files that are no JSON objects are added to `left_out`."""
    for name, place in folders(root, ROUNDS):
        for path in sorted(place.glob("*/systems/*.json")):
            try:
                found = json.loads(path.read_text(encoding="utf-8-sig", errors="replace"))
            except ValueError:
                found = None
            if not isinstance(found, dict):
                left_out.append(str(path.relative_to(root)))
                continue
            values = (" ".join(str(found.get(field, "")).split()) for field in COPIED)
            yield (name, path.parts[-3], path.stem, *values)


def main(arguments: list[str]) -> int:
    """Writes the table and reports what was left out."""
    return command(__doc__, arguments, 1, _write)


def _write(root: str) -> str:
    left_out: list[str] = []
    found = list(rows(Path(root), left_out))
    write_csv(TARGET, FIELDS, found, line_end="\n")
    return f"Wrote {TARGET.name}: {len(found)} descriptions; no JSON objects: {len(left_out)}."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
