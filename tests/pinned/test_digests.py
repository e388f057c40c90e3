"""Pins every preset as a whole: an edit of any of its fields changes its digest.

digests.json is renewed on purpose only, with `python -m tests.pinned.test_digests`, after the source of the new value
has been added where test_headers.py or a benchmark's own test compares it.
"""

import importlib
import json
import pathlib

from common.config import benchmarks
from common.config.digest import digest

PATH = pathlib.Path(__file__).with_name("digests.json")


def _digests() -> dict[str, str]:
    return {
        f"{benchmark}/{name}": digest(config)
        for benchmark in benchmarks.NAMES
        for name, config in importlib.import_module(f"{benchmark}.presets").PRESETS.items()
    }


def test_no_preset_changed_unseen() -> None:
    pinned, now = json.loads(PATH.read_text()), _digests()
    assert {name: now.get(name) for name in pinned} == pinned


if __name__ == "__main__":
    PATH.write_text(json.dumps(_digests(), indent=1, sort_keys=True) + "\n")
