"""Tests that a wrong field of a benchmark is refused in one line, before TensorFlow is imported."""

import importlib
import re

import pytest

from common.config import overrides as configs
from common.errors import UserError

# BENCHMARK/PRESET: lines of PATH=VALUE;PATH=VALUE and a part of the message.
BAD = {
    "resnet/tpu-v4-512": """
        model=resnet5 config.model='resnet5': unknown (did you mean resnet50?); known: resnet50, alexnet_bn
        optimizer.name=adam unknown (did you mean adamw
        kernel_initializer=he config.kernel_initializer='he': unknown
        data.cache=ram config.data.cache='ram': unknown
        data.resize=area config.data.resize='area': unknown
        num_classes=0 config.num_classes=0: must be at least 1
        label_smoothing=1 config.label_smoothing=1.0: must be at least 0 and below 1
        image_size=225 config.space_to_depth=True needs an even config.image_size, not 225
        model=alexnet_bn;image_size=66 config.image_size=66: alexnet_bn needs at least 67
        data.area_range=1,0.5 config.data.area_range=(1.0, 0.5): must be two numbers
        batch_norm_span=24 config.batch_norm_span=24 does not group 512 replicas of 16 images
        batch_norm_span=3 use a divisor of 16, or 16 times a divisor of 512
        batch_norm_span=-16 config.batch_norm_span=-16 does not group
        batch_norm_span=48 config.batch_norm_span=48 does not group
    """,
    "ssd/tpu-v4-512": """
        optimizer.name=lars config.optimizer.name='lars': SSD is published with sgd only
        data.cache=ram config.data.cache='ram': unknown
        num_classes=1 config.num_classes=1: the background and one class at least
        image_size=301 config.space_to_depth=True needs an even config.image_size, not 301
        image_size=150 config.image_size=150: feature maps of
        levels=9 config.levels='9': unknown; known: published, tiny, small_objects
        batch_norm_span=24 config.batch_norm_span=24 does not group 512 replicas of 4 images
        data.max_boxes=0 config.data.max_boxes=0: must be at least 1
    """,
    "maskrcnn/tpu-v4-512": """
        optimizer.name=lars config.optimizer.name='lars': Mask R-CNN is published with sgd only
        data.cache=ram config.data.cache='ram': unknown
        loss_divisors=sample config.loss_divisors='sample': unknown (did you mean sampled?); known: positives, sampled
        batch_norm=sync config.batch_norm='sync': unknown; known: frozen, span
        num_classes=1 config.num_classes=1: the background and one class at least
        padded_size=832,1300 config.padded_size=(832, 1300) does not hold images of
        padded_size=840,1344 config.padded_size=(840, 1344): must be multiples of 64
        padded_size=1344,832 config.padded_size=(1344, 832): must be two sides, the shorter one first
        network=big config.network='big': unknown; known: published, tiny, small_objects
        anchor_scale=0 config.anchor_scale=0.0: must be from 0.1 to 10000
        score_threshold=1 config.score_threshold=1.0: must be at least 0 and below 1
        batch_norm_epsilon=0 config.batch_norm_epsilon=0.0: must be positive
        batch_norm=span config.freeze=True: not with config.batch_norm='span'
        data.deterministic=False data.deterministic
        eval_workers=-1 config.eval_workers=-1: must be at least 0
    """,
    "tsm_kinetics/summit-8": """
        model=tsmm config.model='tsmm': unknown (did you mean tsm, tsn?); known: tsm, i3d_3x3x3, i3d_3x1x1, tsn
        blocks=3,4,6 config.blocks=(3, 4, 6): give four
        data.sampling=all config.data.sampling='all': unknown
        data.modality=flow config.data.modality='flow': unknown; known: rgb, rgb_difference
        data.window=7 config.data.window=7: must hold the 8 frames
        data.eval_crops=2 config.data.eval_crops=2: must be 1 or 3
        data.eval_size=300 config.data.eval_size=300: must not exceed
        data.jitter=1 config.data.jitter=1.0: must be at least 0 and below 1
        data.scales=1.5 config.data.scales=(1.5,): give numbers
        num_classes=0 config.num_classes=0: must be at least 1
    """,
    "mnist/cpu-128": """
        model=cmn known: lstm, mlp, cnn
        activation=gelu known: sigmoid, tanh, relu
        lstm_units=0 must be at least 1
        dropout=1.0 must be at least 0 and below 1
        global_batch_size=60001 more than the 60000 training images
    """,
    "ptb/cpu-20": """
        units=0 must be at least 1
        num_steps=0 config.num_steps=0: must be at least 1
        data.eval_split=train known: test, valid
        dropout=1.0 must be at least 0 and below 1
        global_batch_size=60000 streams shorter than config.num_steps=20; use fewer streams
    """,
}


@pytest.mark.parametrize(
    ("preset", "field", "message"),
    [
        (preset, *line.strip().split(" ", 1))
        for preset, lines in BAD.items()
        for line in lines.strip().splitlines()
    ],
)
def test_bad_fields_are_one_line(preset: str, field: str, message: str) -> None:
    benchmark, name = preset.split("/")
    config = importlib.import_module(f"{benchmark}.presets").PRESETS[name]
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        for one in field.split(";"):
            config = configs.override(config, *one.split("=", 1))
        config.validate()
    assert "\n" not in str(raised.value)
