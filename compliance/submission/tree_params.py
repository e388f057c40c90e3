"""Reads the flags in `package_checker_params` files of a submitter's folder, a system or a benchmark.

training_rules.adoc, "RCP Rules and Guidelines". Each flag has a line of its own, with - or _ between words.
"""

from pathlib import Path

from compliance.submission.tree_files import read_small

NAME = "package_checker_params"
RCP_BYPASS, SEED_BYPASS, BERT_SAMPLES = "rcp-bypass", "seed-checker-bypass", "rcp-bert-train-samples"


def flags(org: Path, folder: Path) -> frozenset[str]:
    """Returns the flags that apply to a folder of runs: its own, its system's and its submitter's."""
    words: set[str] = set()
    for place in (org, folder.parent, folder):
        try:
            text = read_small(place / NAME, 1 << 16).decode("utf-8", "replace")
        except (OSError, ValueError):
            continue
        words |= {line.strip().lstrip("-").replace("_", "-") for line in text.splitlines()}
    return frozenset(words & {RCP_BYPASS, SEED_BYPASS, BERT_SAMPLES})
