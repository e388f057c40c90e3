"""Pins every preset as a whole: an edit of any of its fields changes its digest.

digests.json is renewed on purpose only, with `python -m tests.pinned.test_digests`, after the source of the new value
has been added where test_headers.py or a benchmark's own test compares it. digest_changes.json holds the digests of
presets before the fields of common/config/removed_fields.json went, and those after it.
"""

import hashlib
import importlib
import json
import pathlib

from common.config import benchmarks, removed
from common.config.digest import _digested, digest

PATH = pathlib.Path(__file__).with_name("digests.json")
CHANGES = pathlib.Path(__file__).with_name("digest_changes.json")
# Removed fields that were `added_field`s, which a digest left out at these defaults.
LATER = {
    "steps_per_execution": 1,
    "frozen_stages": 0,
    "loss_scale_growth_steps": 0,
    "communication.segments": 0,
    "communication.shard_in_blocks": False,
}
LATER |= {"uniform_initializer": "fan_avg", "rpn_inside": False, "smoothing_over": "all"}
LATER |= {"geometry": "plain", "loss_divisors": "positives", "data.resize": "bilinear"}
LATER |= {"data.colours": "torch", "bias_initializer": "zeros", "schedule.drops_round_down": False}


def _digests() -> dict[str, str]:
    return {
        f"{benchmark}/{name}": digest(config)
        for benchmark in benchmarks.NAMES
        for name, config in importlib.import_module(f"{benchmark}.presets").PRESETS.items()
    }


def test_no_preset_changed_unseen() -> None:
    pinned, now = json.loads(PATH.read_text()), _digests()
    assert {name: now.get(name) for name in pinned} == pinned


def digest_with_removed_fields(name: str) -> str:
    """The digest of a preset, "BENCHMARK/NAME", if the fields that are gone were still there."""
    benchmark, _, system = name.partition("/")
    values = _digested(benchmarks.module(benchmark, "presets").PRESETS[system])
    former = removed.former_fields(values)
    for new in ("implementation", "network"):  # They say what several former fields said.
        values.pop(new, None)
    values["communication"].pop("weight_update", None)
    for path, value in former.items():
        if path == "levels" or path.startswith("optimizer.") or LATER.get(path, ...) == value:
            continue
        *groups, field = path.split(".")
        group = values
        for one in groups:
            group = group.setdefault(one, {})
        group[field] = value
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def test_removed_fields_alone_changed_the_digests() -> None:
    """Presets that have changed since are left out; most have not."""
    changes, now = json.loads(CHANGES.read_text()), _digests()
    same = {name: before for name, (before, after) in changes.items() if now.get(name) == after}
    assert len(same) > len(changes) / 2
    assert {name: digest_with_removed_fields(name) for name in same} == same


if __name__ == "__main__":
    PATH.write_text(json.dumps(_digests(), indent=1, sort_keys=True) + "\n")
