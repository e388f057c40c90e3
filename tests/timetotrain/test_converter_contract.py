"""Tests that every benchmark's custom_data.py keeps the promises of `folder_conversion.Converter`."""

import inspect

import pytest

from common.config import benchmarks, data_description
from common.data.folder_conversion import Card, Conversion, Converter, Options
from common.errors import UserError
from tests import custom_sources
from tests.benchmarks import check_all
from timetotrain.use import data

SOURCES = {
    "resnet": custom_sources.photographs, "ssd": custom_sources.objects, "maskrcnn": custom_sources.objects,
    "transformer": custom_sources.sentences, "gnmt": custom_sources.sentences,
    "tsm_kinetics": custom_sources.clips, "llama31_8b": custom_sources.text,
}  # fmt: skip
LIBRARIES = {"gnmt": "sacremoses", "transformer": "official"}


@pytest.fixture(scope="module", params=data.NAMES)
def converted(request, tmp_path_factory):
    """(module, result, folder of the records, sources)."""
    name = request.param
    if name in LIBRARIES:
        pytest.importorskip(LIBRARIES[name])
    folder = tmp_path_factory.mktemp(name)
    sources = SOURCES[name](folder / "source")
    module, out = benchmarks.module(name, "custom_data"), folder / "out"
    sources = list(sources) if isinstance(sources, tuple) else [sources]
    return module, module.convert(sources, out, Options(vocabulary_size=200)), out, sources


def test_the_functions_have_the_protocol_s_parameters(converted):
    for name in ("convert", "preview"):
        ours, shared = (inspect.signature(getattr(x, name)).parameters for x in (converted[0], Converter))
        assert list(ours) == list(shared)[1:]
    assert converted[0].PREVIEW in benchmarks.module(converted[1].description.benchmark, "presets").PRESETS


def test_the_result_is_what_a_run_reads(converted):
    module, result, out, _ = converted
    assert isinstance(result, Conversion) and data_description.read(out) == result.description
    name = result.description.benchmark
    config = data_description.filled(benchmarks.module(name, "presets").PRESETS[module.PREVIEW], out)
    check_all(benchmarks.module(name, "task").Task(config, str(out)))
    if result.balance and name not in ("ssd", "maskrcnn"):  # There, it counts objects.
        sums = [sum(column) for column in list(zip(*result.balance))[1:]]
        assert sums == [config.num_train_examples, config.num_eval_examples]
    assert all(isinstance(text, str) for fact in result.facts for text in fact)


def test_the_preview_has_pictures_or_lines(converted):
    module, result, out, _ = converted
    cards = module.preview(out, result.description, 4)
    assert len(cards) >= 4 and all(isinstance(card, Card) and card.title for card in cards)
    assert all(card.picture.startswith(b"\x89PNG") if card.picture else card.lines for card in cards)


def test_finished_records_are_not_overwritten(converted):
    module, _, out, sources = converted
    with pytest.raises(UserError, match="holds converted data already"):
        module.convert(sources, out, Options())
