"""Tests that `validate()` refuses every value that a later stage would refuse, for every field of every benchmark."""

import dataclasses
import functools
import itertools
import typing

import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.config import benchmarks, validation
from common.config.choices import with_field
from common.config.optimizer import Adam
from common.config.overrides import field_types
from common.config.rules import NAMES, OPTIMIZERS, SCHEDULES, variants_of
from common.config.run_length import RunLength
from common.config.schedule import Gnmt, Noam, Step
from common.distributed import gradient_sum
from common.distributed.replicas.base import contiguous_groups
from common.errors import UserError
from common.optim import optimizers, schedules

# Values off the range of most fields, beside some that many fields take.
WHOLE = (-(2**40), -1, 0, 1, 2, 3, 7, 64, 1000, 2**32, 2**40)
NUMBERS = (float("nan"), float("-inf"), float("inf"), -1.0, 0.0, 1e-9, 0.5, 1.0, 1.5, 300.0, 1e12)
WORDS = (
    "", "foo", "none", "os:nothing", "nowhere:f", ":", "cosine", "step", "noam", "gnmt", "adam", "adagrad",
)  # fmt: skip
KINDS = {
    bool: st.booleans(),
    int: st.sampled_from(WHOLE) | st.integers(),
    float: st.sampled_from(NUMBERS) | st.floats(),
    str: st.sampled_from(WORDS) | st.text(max_size=5),
}


def values(kind):
    """The strategy of values for a field's type."""
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return st.lists(values(arguments[0]), max_size=5).map(tuple)
    optional = [values(one) for one in arguments if one is not type(None)]
    return st.none() | optional[0] if optional else KINDS[kind]


def kinds(config, prefix=""):
    """{path: type} of every field, those of groups included, without the names of rules and kinds."""
    types = {}
    for name, kind in field_types(type(config)).items():
        value, path = getattr(config, name), f"{prefix}{name}"
        types |= kinds(value, f"{path}.") if dataclasses.is_dataclass(value) else {path: kind}
    return {path: kind for path, kind in types.items() if path not in NAMES}


@functools.cache
def starts(benchmark):
    """Presets that differ in backend: where the fields' values begin."""
    presets = benchmarks.module(benchmark, "presets").PRESETS
    return list({config.replicas: config for config in presets.values()}.values())


@st.composite
def changed(draw):
    """A configuration with one to three fields of other values."""
    benchmark = draw(st.sampled_from(benchmarks.NAMES))
    config = draw(st.sampled_from(starts(benchmark)))
    for variants in (OPTIMIZERS, SCHEDULES):
        if name := draw(st.none() | st.sampled_from(list(variants.classes))):
            group = variants.renamed(getattr(config, variants.group), name)
            config = dataclasses.replace(config, **{variants.group: group})
    kind_of_path = kinds(config)
    for path in draw(st.lists(st.sampled_from(list(kind_of_path)), min_size=1, max_size=3)):
        config = with_field(config, path, draw(values(kind_of_path[path])))
    return benchmark, config


def later_stages(benchmark, config):
    """The stages that need neither data nor a network: each raises for a value that it refuses."""
    run_length = RunLength.of(config)
    assert all(block.num_steps > 0 for block in itertools.islice(run_length.intervals(), 3))
    assert run_length.eval_steps > 0 and run_length.whole_steps_per_epoch > 0 and config.micro_batch_size > 0
    if not config.plugin_functions():
        rate = schedules.learning_rate(
            config.schedule,
            config.optimizer.base_learning_rate,
            run_length.steps_per_epoch,
            run_length.train_steps,
        )
        rate(tf.constant([0, min(run_length.train_steps, 2**31) - 1], tf.int64))
        rule = optimizers.rule(config.optimizer)
        rule.init(tf.zeros([2]))
    gradient_sum.route(config.communication, config.num_replicas)
    validation.check_backend(config)
    if (
        getattr(config, "bn_span", 0) > config.micro_batch_size
        and getattr(config, "batch_norm", "span") == "span"
    ):
        contiguous_groups(config.num_groups, config.bn_span // config.micro_batch_size)
    benchmarks.module(benchmark, "presets").hyperparameters(config)


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(changed())
def test_a_value_is_refused_by_validate_or_by_no_later_stage(case):
    benchmark, config = case
    try:
        config.validate()
    except UserError as error:
        assert str(error).startswith("config."), error
        return
    later_stages(benchmark, config)


def test_the_names_are_those_of_the_stages():
    assert set(OPTIMIZERS.classes) == set(optimizers._RULES)
    values = {"step": {"boundaries": (1.0,)}, "gnmt": {"decay_interval": 1}}
    for kind in SCHEDULES.classes:
        schedule = SCHEDULES.make(kind, **values.get(kind, {}))
        assert schedules.learning_rate(schedule, 0.1, 10.0, 100)(tf.constant(3)) > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule.kind": "foo"}, "config.schedule.kind='foo': unknown; known: constant, poly, step"),
        ({"schedule.kind": "cosin"}, "did you mean cosine"),
        ({"schedule": Gnmt(warmup_curve="cubic")}, "config.schedule.warmup_curve='cubic': unknown"),
        ({"schedule": Step()}, "config.schedule.boundaries is empty"),
        (
            {"schedule": Noam(warmup_epochs=0.0)},
            "config.schedule.warmup_steps=0.0: kind 'noam' starts at infinity",
        ),
        ({"schedule": Gnmt()}, "config.schedule.decay_interval=0: kind 'gnmt' needs a positive number"),
        (
            {"schedule": Gnmt(decay_interval=1)},
            "config.schedule.kind='gnmt': mnist takes constant, poly, or MODULE",
        ),
        ({"optimizer": Adam(epsilon=0.0)}, "config.optimizer.epsilon=0.0: adam would divide 0 by 0"),
        ({"num_replicas": 2}, "config.num_replicas=2: the backend single has one"),
        (
            {"replicas": "pjrt", "compile": "off"},
            "config.compile=off: config.replicas=pjrt compiles every step",
        ),
        ({"replicas": "mirrored", "compile": "on"}, "its programs cannot stand between exchanges"),
        ({"num_eval_examples": 0}, "num_eval_examples=0: both must be at least 1"),
        ({"train_epochs": 0.0}, "less than one step; raise it"),
        ({"train_epochs": float("inf")}, "config.train_epochs=inf: must be a finite number"),
        ({"quality_target": float("nan")}, "config.quality_target=nan: must be a finite number"),
    ],
)
def test_what_a_later_stage_refuses_is_refused_in_its_words(changes, message):
    config = benchmarks.module("mnist", "presets").PRESETS["cpu-tiny"]
    config = dataclasses.replace(config)
    with pytest.raises(UserError) as error:
        for path, value in changes.items():
            if variants := variants_of(path):
                group = variants.renamed(getattr(config, variants.group), value)
                config = dataclasses.replace(config, **{variants.group: group})
            else:
                config = with_field(config, path, value)
        config.validate()
    assert message in str(error.value)
