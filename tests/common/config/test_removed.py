"""Tests what a flag or a saved configuration with a field of an earlier version says, and the table of these fields."""

import json

import pytest

from common.config import benchmarks, overrides, removed
from common.config.digest import from_dict, to_dict
from common.config.overrides import field_types
from common.errors import UserError


def field_of(config: object, path: str) -> bool:
    """Whether a configuration has the field at `path`."""
    head, _, rest = path.partition(".")
    if head not in field_types(type(config)):
        return False
    return not rest or field_of(getattr(config, head), rest)


@pytest.mark.parametrize(
    ("name", "epochs", "steps", "read"),
    [
        ("ssd/cpu-nuclei", 10.0, 0, True),
        ("ssd/cpu-nuclei", 10.0, 7, False),
        ("ssd/cpu-tiny", 4.0, 0, True),
        ("resnet/dgx-1", 1.0, 770, True),
        ("resnet/dgx-1", 1.0, 771, False),
    ],
)
def test_the_first_evaluation_of_an_earlier_version_is_read(name, epochs, steps, read) -> None:
    benchmark, _, system = name.partition("/")
    config = benchmarks.module(benchmark, "presets").PRESETS[system]
    saved = to_dict(config) | {"eval_epochs": [], "first_block_epochs": epochs, "first_block_steps": steps}
    if read:
        assert from_dict(type(config), saved) == config
    else:
        with pytest.raises(UserError, match="config.first_block_.*use the version that wrote this file"):
            from_dict(type(config), saved)
    with pytest.raises(UserError, match="now, so give --config.eval_epochs=3$"):
        overrides.override(config, "first_block_epochs", "3")


@pytest.mark.parametrize("benchmark", benchmarks.NAMES)
def test_a_removed_field_is_gone_and_a_flag_or_file_with_it_is_answered(benchmark: str) -> None:
    config = benchmarks.module(benchmark, "presets").PRESETS["cpu-tiny"]
    fields = removed.former_fields(benchmark)
    assert fields and not [path for path in fields if field_of(config, path)]
    saved = json.loads(json.dumps(to_dict(config)))
    for path, value in fields.items():
        with pytest.raises(
            UserError, match=rf"--config\.{path}=other: earlier versions had this field; it is"
        ):
            overrides.override(config, path, "other")
        for text in {str(value), str(value).strip("[]"), str(int(value)) if value is True else str(value)}:
            assert overrides.override(config, path, text) == config
        *groups, name = path.split(".")
        group = saved
        for one in groups:
            group = group.setdefault(one, {})
        group[name] = value
    assert from_dict(type(config), saved) == config
    path, value = next(iter(fields.items()))
    with pytest.raises(
        UserError, match=rf"config\.{path}=\"other\": earlier versions had .* the version that"
    ):
        from_dict(type(config), {**saved, path: "other"})
