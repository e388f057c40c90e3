"""Tests the description of a configuration's fields: every field of every benchmark has a sentence."""

import dataclasses

import pytest

from common.config import benchmarks, fields
from common.config import overrides as configs
from common.config.schema import RunConfig


@dataclasses.dataclass(frozen=True)
class Part:
    """What a part is.

    Attributes:
      one, two: a meaning
        of two lines: with a colon.
      last: the last.

    More text.
    """

    one: int = 1
    two: tuple[float, ...] = (0.5, 1.0)
    last: bool = True


@dataclasses.dataclass(frozen=True)
class Whole(Part):
    """Two lines
    in one.

    Attributes:
      last: another meaning.
    """

    part: Part = Part()
    name: str | None = None


def test_fields_of_groups_and_bases():
    actual = fields.describe(Whole(), Part)
    assert [(f.path, f.group, f.specific) for f in actual] == [
        *(("one", "", False), ("two", "", False), ("last", "", False)),
        *(("part.one", "part", True), ("part.two", "part", True), ("part.last", "part", True)),
        ("name", "", True),
    ]
    assert actual[0].meaning == actual[1].meaning == "a meaning of two lines: with a colon."
    assert (actual[2].meaning, actual[5].meaning, actual[6].meaning) == ("another meaning.", "the last.", "")
    assert [f.text for f in actual] == ["1", "0.5,1.0", "true", "1", "0.5,1.0", "true", ""]
    assert [f.kind for f in actual[:3]] == ["whole number", "numbers a,b,...", "true or false"]
    assert actual[6].kind == "text, or none"
    assert fields.purpose(Whole) == "Two lines in one."


@pytest.mark.parametrize("name", benchmarks.NAMES)
def test_every_field_has_a_sentence_and_its_text_gives_its_value(name):
    config = benchmarks.module(name, "presets").Config()
    described = fields.describe(config, RunConfig)
    assert [f.path for f in described if len(f.meaning.split()) < 3 or not f.meaning.endswith(".")] == []
    for field in described:
        assert configs.override(config, field.path, field.text) == config, field.path


@pytest.mark.parametrize("name", benchmarks.NAMES)
def test_no_sentence_is_about_a_field_that_is_gone(name):
    def classes(cls):
        yield cls
        for kind in configs.field_types(cls).values():
            if dataclasses.is_dataclass(kind):
                yield from classes(kind)

    for cls in classes(benchmarks.module(name, "presets").Config):
        # A benchmark may make a constant of a field that others have.
        assert set(fields.meanings(cls)) <= {*configs.field_types(cls), *configs.field_types(RunConfig)}, cls
