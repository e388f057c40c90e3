"""Tests a state in parts: built, compiled, saved and restored one variable at a time, bit for bit as at once."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from common.distributed import replicas
from common.train import checkpoint
from common.train.programs import Programs
from llama31_8b.config import Config
from llama31_8b.presets import PRESETS
from llama31_8b.task import Task
from tests.llama31_8b.test_llama_devices import FORMS


class AtOnce(Config):
    """The configuration of a network that a host holds at once."""

    state_bytes = 0


def programs(kind: type[Config], **changes) -> Programs:
    pytest.importorskip("jax")
    config = dataclasses.replace(PRESETS["cpu-tiny"], replicas="pjrt", global_batch_size=4, **changes)
    config = kind(**{field.name: getattr(config, field.name) for field in dataclasses.fields(config)})
    return Programs(Task(config, None), replicas.make(config))


def bits(run: Programs) -> list[bytes]:
    local = run.replicas.local_results
    return [np.array(x.numpy()).tobytes() for v in run.state.variables() for x in local(v)]


@pytest.mark.parametrize("form", [None, "zero-3"])
def test_a_state_in_parts_is_bit_for_bit_the_state_at_once(form: str | None, tmp_path: Path) -> None:
    how = {"layers": 1, "accumulation_steps": 2, **({"num_replicas": 2, **FORMS[form]} if form else {})}
    parts, whole = (programs(kind, **how) for kind in (Config, AtOnce))
    variables = parts.state.variables()
    assert sum(map(parts.replicas.untouched, variables)) == len(variables) - 2, "all but two counters"
    for run in (parts, whole):
        run.compile()
    assert bits(parts) == bits(whole), "a compilation, which trains on noise, changes nothing"
    for run, folder in ((parts, "parts"), (whole, "whole")):
        run.call(run.synthetic(True), run.synthetic(False), 3, 1)
        checkpoint.save(run, tmp_path / folder)
    assert bits(parts) == bits(whole)
    saved, expected = (dict(np.load(next((tmp_path / f).glob("*.npz")))) for f in ("parts", "whole"))
    assert saved.keys() == expected.keys()
    assert all(x.tobytes() == expected[name].tobytes() for name, x in saved.items() if name != "meta")
    again = programs(Config, **how)
    assert checkpoint.restore_latest(again, tmp_path / "whole").step == 3
    assert bits(again) == bits(parts)


def test_a_damaged_checkpoint_in_parts_changes_nothing(tmp_path: Path) -> None:
    run = programs(Config, layers=1)
    path = checkpoint.save(run, tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    before = bits(run)
    with pytest.raises(checkpoint.checkpoint_file.DamagedError):
        checkpoint.restore_latest(run, tmp_path)
    assert bits(run) == before
