"""Lists who sets each field of a configuration, and tests what a field of an earlier version says.

Fields that nobody sets (a preset, a page, a script of lab/, own data) are constants.
`python -m tests.common.config.test_who_sets BENCHMARK` prints the list.
"""

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from common.config import benchmarks, overrides, removed
from common.config.digest import from_dict, to_dict
from common.config.overrides import field_types
from common.config.rules import SCHEDULES
from common.config.schema import RunConfig
from common.errors import UserError
from common.files import ROOT
from maskrcnn.config import Config as MaskRcnn
from ssd.presets import PRESETS as SSD

# Fields that a published source has as an option of its own, though no preset has another value.
SOURCES = {
    "communication.algorithm": "section 2 of Scale MLPerf-0.6 Models on Google TPU-v3 Pods",
    "data.eval_reference": "the other half of data.eval_source",
    "attention": "forms of one function, chosen by the device",
}
# The number of fields of each benchmark besides the optimizer's; it may only fall.
MOST = {"gnmt": 58, "llama31_8b": 55, "maskrcnn": 59, "mnist": 52, "ptb": 52, "resnet": 59, "ssd": 59}
MOST |= {"transformer": 59, "tsm_kinetics": 59}
# Fields of a set of values -> those of an earlier version that they were, if the names differ.
FORMER = {
    "colors": "data.colours",
    "drops_round_down": "schedule.drops_round_down",
    "strided": "strided_extras",
}
FORMER |= {"unpadded": "valid_extras", "scales": "anchor_scales", "steps": "anchor_steps"}
FORMER |= {"per_cell": "anchors_per_cell"}
# What decides a field of a run: rules for own data and machines, and flags with a name of their own.
_OWN_DATA = ("common/config/*.py", "common/detection/custom_pictures.py", "timetotrain/run/request.py")


def leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, value, default) of each field, also in groups."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value, field.default


def paths(config: RunConfig) -> set[str]:
    """The fields of a benchmark's configuration, those of every kind of schedule that it takes among them."""
    kinds = [SCHEDULES.classes[kind] for kind in ("constant", *config.schedules)]
    schedule = {f"schedule.{field.name}" for kind in kinds for field in dataclasses.fields(kind)}
    return schedule | {path for path, *_ in leaves(config)}


@functools.cache
def read_words() -> dict[str, tuple[str, set[str]]]:
    """{file: (kind of user, the fields that it names as a flag, a key or a keyword)}."""
    places = {
        "page": ("*.md", "docs/*.md", "*/README.md"),
        "lab": ("lab/**/*.py", "lab/**/*.json", "lab/**/*.csv"),
        "own data": (*_OWN_DATA, "*/custom_data.py", "*/presets.py"),
    }
    forms = {
        "page": r"config\.([\w.]*\w)|--(\w+)[= `]",
        "lab": r"config\.([\w.]*\w)=|[\"']([\w.]*\w)[\"']|\b([\w.]*\w)=",
        "own data": r"[\"']([\w.]*\w)[\"']|\b(\w+)=",
    }
    files = {}
    for kind, patterns in places.items():
        for path in (path for pattern in patterns for path in sorted(ROOT.glob(pattern))):
            if path.name not in ("CHANGELOG.md", "removed.py"):
                words = re.findall(forms[kind], path.read_text(encoding="utf-8"))
                files[path.relative_to(ROOT).as_posix()] = kind, {word for match in words for word in match}
    return files


def users(benchmark: str) -> dict[str, set[str]]:
    """{field: who sets it}, without the optimizer's fields; a field of every benchmark may have its user elsewhere."""
    presets = {name: benchmarks.module(name, "presets").PRESETS for name in benchmarks.NAMES}
    own_paths = [path for path in paths(presets[benchmark]["cpu-tiny"]) if not path.startswith("optimizer.")]
    users_of = {path: elsewhere(benchmark, path) for path in own_paths}
    shared = paths(RunConfig())
    for other, one in presets.items():
        for system, preset in one.items():
            for path, value, default in leaves(preset):
                if path in users_of and value != default and (other == benchmark or path in shared):
                    users_of[path].add(f"{other}/{system}")
    return users_of


def elsewhere(benchmark: str, path: str) -> set[str]:
    """The files besides presets that set a field: by its path, or its last part as a keyword beside a group."""
    leaf = path.rpartition(".")[2]
    return {
        file
        for file, (kind, words) in read_words().items()
        if (file.partition("/")[0] not in benchmarks.NAMES or file.startswith(benchmark) or kind == "page")
        and (path in words or (kind == "own data" and leaf in words))
    }


@pytest.mark.parametrize("benchmark", benchmarks.NAMES)
def test_every_field_has_somebody_who_sets_it(benchmark: str) -> None:
    nobody = {path for path, who in users(benchmark).items() if not who and path not in SOURCES}
    assert not nobody, (
        f"{benchmark}: a constant would do (ClassVar; common/config/removed_fields.json names it)"
    )


@pytest.mark.parametrize("benchmark", benchmarks.NAMES)
def test_no_benchmark_has_more_fields_than_before(benchmark: str) -> None:
    assert len(users(benchmark)) <= MOST[benchmark]


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
    fields = removed.former_fields(to_dict(config))
    assert fields and not [path for path in fields if field_of(config, path)]
    saved = json.loads(json.dumps(to_dict(config)))
    for path, value in fields.items():
        if path in ("data.private_threads", "hoisted", "folded"):  # They changed no result.
            assert overrides.override(config, path, "16") == config
            assert from_dict(type(config), removed._replaced(saved, path, 16)) == config
        else:
            with pytest.raises(
                UserError, match=rf"--config\.{path}=other: earlier versions had this field; (it is|config\.)"
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


def saved_before(benchmark: str, system: str, *left_out: str) -> tuple[Any, dict]:
    """A preset, and how an earlier version saved it, without the fields `left_out`."""
    config = benchmarks.module(benchmark, "presets").PRESETS[system]
    saved = json.loads(json.dumps(to_dict(config)))
    for path, value in removed.former_fields(to_dict(config)).items():
        *groups, name = path.split(".")
        functools.reduce(lambda group, one: group.setdefault(one, {}), groups, saved)[name] = value
    for path in left_out:
        *groups, name = path.split(".")
        del functools.reduce(dict.__getitem__, groups, saved)[name]
    return config, saved


@pytest.mark.parametrize(
    ("benchmark", "field", "systems"),
    [
        ("maskrcnn", "network", ("cpu-tiny", "cpu-nuclei", "dgx-2h")),
        ("maskrcnn", "implementation", ("cpu-tiny", "tpu-v4-16", "dgx-2h")),
        ("ssd", "network", ("cpu-tiny", "cpu-nuclei", "v100-8")),
        ("ssd", "implementation", ("cpu-tiny", "tpu-v4-16", "dgx-1")),
        ("resnet", "implementation", ("cpu-tiny", "tpu-v4-16", "v100-8", "dgx-1")),
        ("resnet", "communication.weight_update", ("cpu-tiny", "tpu-v3-2048")),
    ],
)
def test_fields_of_an_earlier_version_choose_the_set_that_has_them(benchmark, field, systems) -> None:
    for system in systems:
        config, saved = saved_before(benchmark, system, field)
        assert from_dict(type(config), saved) == config


@pytest.mark.parametrize("benchmark", ["maskrcnn", "resnet", "ssd"])
def test_sets_have_the_values_of_the_former_fields(benchmark: str) -> None:
    """The digests of the presets before (tests/pinned) pin the table of these fields."""
    module, rows = benchmarks.module(benchmark, "config"), removed.table()[benchmark]
    for name, one in {**module.IMPLEMENTATIONS, **getattr(module, "SIZES", {})}.items():
        values = one._asdict() if isinstance(one, tuple) else dataclasses.asdict(one)
        for field, value in values.items():
            (path,) = {FORMER.get(field, field), f"data.{field}"} & rows.keys()
            assert json.loads(json.dumps(value)) == rows[path][name], (name, field)
    for model in ("resnet50", "alexnet_bn") if benchmark == "resnet" else ():
        assert module.Config(model=model).crop_fraction == rows["data.crop_fraction"][model]


def test_a_field_that_the_oldest_files_lack_had_its_default() -> None:
    """They lack `geometry`, so that NVIDIA's presets computed with plain boxes."""
    _, saved = saved_before(
        "maskrcnn", "dgx-2h", "implementation", "geometry", "uniform_initializer", "rpn_inside"
    )
    with pytest.raises(
        UserError, match=r'config.geometry="plain": .*config.implementation decides it now \(plain: '
    ):
        from_dict(MaskRcnn, saved)
    del saved["loss_divisors"], saved["data"]["resize"]
    assert from_dict(MaskRcnn, saved | {"geometry": "plain"}).implementation == "plain"
    assert from_dict(MaskRcnn, {"benchmark": "maskrcnn"}) == MaskRcnn()


def test_a_message_names_the_field_that_decides_a_former_one() -> None:
    config, saved = saved_before("maskrcnn", "cpu-tiny", "network")
    with pytest.raises(UserError, match=r"config.rpn_batch=32: .*config.network decides it now \(.*tiny: 64"):
        from_dict(type(config), {**saved, "rpn_batch": 32})
    with pytest.raises(
        UserError, match=r"fpn_channels=64: .*decides it now \(.*\), so give --config.network=small_objects$"
    ):
        overrides.override(config, "fpn_channels", "64")
    colors = dataclasses.replace(SSD["cpu-tiny"].data, contrast=0.3)
    config = dataclasses.replace(SSD["cpu-tiny"], data=colors)
    assert overrides.override(config, "data.saturation", "0.3") == config
    config, saved = saved_before("maskrcnn", "dgx-2h", "implementation")
    assert from_dict(type(config), saved | {"padded_size": [832, 1344]}) == config
    with pytest.raises(
        UserError, match=r"padded_size=\[832, 1344\]: .*short_side,long_side,network decides it now"
    ):
        from_dict(type(config), saved | {"padded_size": [832, 1344], "long_side": 1000})
    with pytest.raises(UserError, match=r"config.bogus: unknown field"):
        from_dict(type(config), {**to_dict(config), "bogus": {}})


if __name__ == "__main__":
    for one, who_sets in sorted(users(sys.argv[1]).items()):
        who = ", ".join(sorted(who_sets)[:4]) or SOURCES.get(one, "")
        print(f"{one}: {who}{', ...' if len(who_sets) > 4 else ''}")
