"""Tests an optimizer and a schedule of one's own: the example of docs/extend.md, and what goes wrong."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from common.config.digest import digest
from common.config.optimizer import OwnRule
from common.config.rules import OPTIMIZERS
from common.config.schedule import OwnSchedule
from common.config.schema import RunConfig
from common.errors import UserError
from common.optim import optimizers, schedules
from timetotrain.search import __main__ as search
from timetotrain.search import space

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/extend.md").read_text()

EXAMPLES = {"num_train_examples": 10, "num_eval_examples": 1}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's module, on the path."""
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.S)[1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


def lion_in_numpy(c, weight, gradients, rate):
    m = np.zeros_like(weight)
    for gradient in gradients:
        weight = weight - rate * (np.sign(c.beta_1 * m + (1 - c.beta_1) * gradient) + c.weight_decay * weight)
        m = c.beta_2 * m + (1 - c.beta_2) * gradient
    return weight


def test_the_page_s_optimizer_is_lion(mine):
    config = OwnRule("mine:lion", weight_decay=0.1, beta_2=0.99)
    rng = np.random.default_rng(0)
    weight, gradients, rate = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4)), 0.01
    rule, whole = optimizers.rule(config), optimizers.Whole("kernel")
    lr = tf.constant(rate, tf.float64)
    value, slots = tf.constant(weight), rule.init(tf.constant(weight))
    for step, gradient in enumerate(gradients):
        state = optimizers.WeightState(value, tf.constant(gradient), slots, lr, tf.constant(step), whole)
        value, slots = rule.update(state)
    np.testing.assert_allclose(value, lion_in_numpy(config, weight, gradients, rate), rtol=1e-12)


def test_the_page_s_schedule_follows_its_formula_after_a_warmup(mine):
    schedule = OwnSchedule("mine:triangle", warmup_epochs=1.0)
    rate = schedules.learning_rate(schedule, 2.0, 4.0, 16)
    np.testing.assert_allclose(rate(tf.constant([0, 2, 8, 12, 16])), [0, 1, 2, 1, 0], atol=1e-6)


def test_the_page_has_twenty_lines_or_so():
    example = re.search(r"def lion.*?\n\n\n", PAGE, re.S)[0]
    assert len(example.splitlines()) <= 20


def test_other_code_has_another_digest(mine):
    config = RunConfig(optimizer=OwnRule("mine:lion"), division="open", **EXAMPLES)
    config.validate()
    before = digest(config)
    assert digest(config) == before
    mine.write_text(mine.read_text() + "# changed\n")
    assert digest(config) != before


def test_a_closed_run_is_refused(mine):
    for part in ({"optimizer": OwnRule("mine:lion")}, {"schedule": OwnSchedule("mine:triangle")}):
        with pytest.raises(UserError, match="log the run as --config.division=open"):
            RunConfig(**part, **EXAMPLES).validate()
        RunConfig(**part, **EXAMPLES, division="open").validate()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:lion", "no module 'nowhere' here"),
        ("no.where:lion", "no module 'no.where' here"),
        ("mine:", "not understood; write MODULE:FUNCTION"),
        ("mine:lio", r"no function 'lio' \(did you mean lion\?\)"),
        ("mine:Rule", "it raises TypeError"),
        ("broken:lion", "importing broken raises NameError"),
        ("mine:other", "returned int, not a common.optim.optimizers.Rule"),
    ],
)
def test_what_is_wrong_is_one_line(mine, name, message):
    (mine.parent / "broken.py").write_text("lion = no_such_name\n")
    mine.write_text(mine.read_text() + "def other(config):\n    return 1\n")
    with pytest.raises(UserError, match=message):
        optimizers.rule(OPTIMIZERS.make(name))


def test_a_schedule_that_is_no_curve_is_one_line(mine):
    mine.write_text("def flat(*_):\n    return 0.1\n")
    with pytest.raises(UserError, match="returned float, not a curve"):
        schedules.learning_rate(OwnSchedule("mine:flat"), 1.0, 1.0, 10)


def test_a_search_takes_it(mine):
    arguments = ["mnist", "--system=cpu-tiny", "--data_dir=.", "--space", "optimizer.name=mine:lion,adam"]
    args = search.parser().parse_args(arguments)
    base = search._base(args, [])
    spaces = space.parse(args.space, base)
    space.check(spaces, base)
    assert list(spaces["optimizer.name"].choices) == ["mine:lion", "adam"]


def test_a_description_has_its_name(mine):
    done = subprocess.run(
        [
            sys.executable, "-m", "resnet", "--system=cpu-tiny", "--describe",
            "--config.optimizer.name=mine:lion",
        ],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hyperparameters"]["opt_name"] == "mine:lion"


def test_a_norm_takes_the_place_of_batch_norm(mine):
    """One step of a small ResNet-50: no layer of batch norm is left, and the log's header names no span."""
    import tf_keras

    from common.distributed import replicas
    from common.layers.precision import precision
    from common.layers.variable_kinds import kind_of
    from resnet import model, presets

    config = dataclasses.replace(presets.PRESETS["cpu-tiny"], norm="mine:group_norm")
    config.validate()
    backend = replicas.make(config)
    with backend.scope():
        network = model.build(config, backend, precision(config.precision))
    kinds = [type(layer).__name__ for layer in network.layers]
    assert "SyncBatchNorm" not in kinds and kinds.count("GroupNormalization") == 53
    assert isinstance(network, tf_keras.Model) and "norm" in kind_of(network).values()
    assert "model_bn_span" not in [key for key, _, _ in presets.hyperparameters(config)]


def test_a_norm_needs_whole_images(mine):
    from resnet import presets

    config = dataclasses.replace(presets.PRESETS["cpu-tiny"], norm="group_norm")
    with pytest.raises(UserError, match="not understood; write MODULE:FUNCTION"):
        config.validate()
    cut = dataclasses.replace(
        config, norm="mine:group_norm", num_replicas=2, partitions=2, replicas="mirrored"
    )
    with pytest.raises(UserError, match="cannot partition"):
        cut.validate()
