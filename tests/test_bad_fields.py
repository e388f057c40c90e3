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
        implementation=keras config.implementation='keras': unknown
        data.cache=ram config.data.cache='ram': unknown
        data.resize=area config.data.resize='area': unknown
        num_classes=0 config.num_classes=0: must be at least 1
        label_smoothing=1 config.label_smoothing=1.0: must be at least 0 and below 1
        image_size=225 config.space_to_depth=True needs an even config.image_size, not 225
        model=alexnet_bn;image_size=66 config.image_size=66: alexnet_bn needs at least 67
        model=alexnet_bn;width=12 multiple of 8
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
        network=9 config.network='9': unknown; known: published, tiny, small_objects
        batch_norm_span=24 config.batch_norm_span=24 does not group 512 replicas of 4 images
        data.max_boxes=0 config.data.max_boxes=0: must be at least 1
    """,
    "maskrcnn/tpu-v4-512": """
        optimizer.name=lars config.optimizer.name='lars': Mask R-CNN is published with sgd only
        data.cache=ram config.data.cache='ram': unknown
        implementation=ours config.implementation='ours': unknown; known: plain, google, nvidia
        batch_norm=sync config.batch_norm='sync': unknown; known: frozen, span
        batch_norm=span;batch_norm_span=3 config.batch_norm_span=3 does not group
        num_classes=1 config.num_classes=1: the background and one class at least
        short_side=1334 config.short_side=1334: must be at most config.long_side=1333
        network=big config.network='big': unknown; known: published, tiny, small_objects
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
    "transformer/tpu-v4-512": """
        width=1000 config.width=1000 does not divide into 16 heads
        layers=0 config.layers=0: must be at least 1
        relu_dropout=1 config.relu_dropout=1.0: must be at least 0 and below 1
        dropout_generator=dice config.dropout_generator='dice': unknown; known: counter, hardware
        optimizer.name=sgd config.optimizer.name='sgd': unknown; known: adam, lazy_adam
        decode.source_length=257 config.decode.source_length=257: must be 1..256
        decode.alpha=-1 config.decode: extra_length=50, alpha=-1.0
    """,
    "gnmt/tpu-v4-512": """
        wiring=googel config.wiring='googel': unknown (did you mean google?); known: reference, google
        smoothing_over=other unknown (did you mean others?); known: all, others
        layers=1 config.layers=1: must be at least 2
        dropout=1 config.dropout=1.0: must be at least 0 and below 1
        bucket_limits=5,5,8 config.bucket_limits=[5, 5, 8]: must be positive and ascend
        bucket_limits=5,7 must end with config.max_sequence_length=48: give both
        decode.target_length=0 target_length=0: must be
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
