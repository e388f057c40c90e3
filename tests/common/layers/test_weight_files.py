"""Tests the reader of other programs' weights; files of torch.save are made by a pickle of torch's own form."""

import collections
import io
import pickle
import struct
import sys
import types
import zipfile

import numpy as np
import pytest

from common.errors import UserError
from common.layers import weight_files

ARRAYS = {
    "conv1.weight": np.arange(2 * 3 * 5 * 7, dtype=np.float32).reshape(2, 3, 5, 7),
    "bn1.weight": np.arange(2, dtype=np.float32),
    "bn1.bias": np.arange(2, dtype=np.float32) + 1,
    "bn1.running_mean": np.arange(2, dtype=np.float32) + 2,
    "bn1.running_var": np.arange(2, dtype=np.float32) + 3,
    "bn1.num_batches_tracked": np.array(4, np.int64),
    "fc.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "fc.bias": np.arange(2, dtype=np.float64),
}


class Tensor:
    def __init__(self, key, array):
        self.key, self.array = key, array


def pickled(arrays, legacy):
    """Returns (pickle, storages) as torch.save writes them: tensors rebuilt from references to storages."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "DoubleStorage", "LongStorage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*_):
        raise AssertionError("only torch calls it")

    rebuild.__module__, rebuild.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = rebuild
    kinds = {"f4": torch.FloatStorage, "f8": torch.DoubleStorage, "i8": torch.LongStorage}

    class Storage:
        def __init__(self, key, array):
            self.key, self.array = key, array

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if isinstance(value, Storage):
                kind = kinds[value.array.dtype.str[1:]]
                view = (None,) if legacy else ()
                return ("storage", kind, value.key, "cpu", value.array.size, *view)
            return None

        def reducer_override(self, value):
            if isinstance(value, Tensor):
                strides = tuple(s // value.array.itemsize for s in value.array.strides)
                storage = Storage(value.key, value.array)
                return rebuild, (storage, 0, value.array.shape, strides, False, collections.OrderedDict())
            return NotImplemented

    out = io.BytesIO()
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules |= {"torch": torch, "torch._utils": utils}
    try:
        tensors = collections.OrderedDict((n, Tensor(str(i), a)) for i, (n, a) in enumerate(arrays.items()))
        tensors._metadata = collections.OrderedDict(bn1={"version": 2})  # As a module's state_dict() has it.
        Pickler(out, protocol=2).dump(tensors)
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return out.getvalue(), {str(i): a.tobytes() for i, a in enumerate(arrays.values())}


def torch_file(path, legacy, arrays=ARRAYS):
    """Writes `arrays` as torch.save does, in the form before torch 1.6 or after."""
    content, storages = pickled(arrays, legacy)
    if not legacy:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("net/data.pkl", content)
            archive.writestr("net/version", "3\n")
            for key, data in storages.items():
                archive.writestr(f"net/data/{key}", data)
        return
    head = [pickle.dumps(x, 2) for x in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
    sizes = [struct.pack("<q", a.size) + data for a, data in zip(arrays.values(), storages.values())]
    path.write_bytes(b"".join([*head, content, pickle.dumps(list(storages), 2), *sizes]))


@pytest.mark.parametrize("kind", ["zip", "legacy", "npz"])
def test_a_state_dict_becomes_our_names_and_layouts(tmp_path, kind):
    path = tmp_path / ("net.npz" if kind == "npz" else "net.pth")
    if kind == "npz":
        np.savez(path, **ARRAYS)
    else:
        torch_file(path, kind == "legacy")
    actual = weight_files.read(path)
    assert sorted(actual) == [
        *("bn1/beta", "bn1/gamma", "bn1/moving_mean", "bn1/moving_variance"),
        *("conv1/kernel", "fc/bias", "fc/kernel"),
    ]
    np.testing.assert_array_equal(actual["conv1/kernel"], ARRAYS["conv1.weight"].transpose(2, 3, 1, 0))
    np.testing.assert_array_equal(actual["fc/kernel"], ARRAYS["fc.weight"].T)
    np.testing.assert_array_equal(actual["bn1/moving_variance"], ARRAYS["bn1.running_var"])
    assert actual["fc/bias"].dtype == np.float64


def test_a_pickle_that_would_run_code_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("run",)

    with zipfile.ZipFile(tmp_path / "evil.pth", "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps({"x": Evil()}))
    with pytest.raises(UserError, match="evil.pth: holds a builtins.print, not only tensors"):
        weight_files.read(tmp_path / "evil.pth")


def test_every_cut_of_a_file_is_one_line(tmp_path):
    for legacy in (False, True):
        torch_file(tmp_path / "whole.pth", legacy)
        data = (tmp_path / "whole.pth").read_bytes()
        for size in range(0, len(data) - 1, len(data) // 12):
            (tmp_path / "cut.pth").write_bytes(data[:size])
            with pytest.raises(UserError) as caught:
                weight_files.read(tmp_path / "cut.pth")
            assert "cut.pth" in str(caught.value) and "\n" not in str(caught.value)


def test_safetensors_of_either_kind(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    library.save_file(ARRAYS, tmp_path / "net.safetensors")
    arrays = weight_files.read(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(arrays["fc/kernel"], ARRAYS["fc.weight"].T)
    library.save_file(arrays, tmp_path / "ours.safetensors")
    assert sorted(weight_files.read(tmp_path / "ours.safetensors")) == sorted(arrays)


def test_kerass_resnet50_has_torchvisions_names():
    renamed = weight_files.keras_names({
        "conv2_block1_0_conv/kernel": np.zeros([1, 1, 2, 3]), "conv2_block1_0_conv/bias": np.full(3, 2.0),
        "conv2_block1_0_bn/moving_mean": np.full(3, 5.0), "conv1_conv/bias": np.full(3, 1.0),
        "conv1_bn/moving_mean": np.full(3, 4.0), "predictions/kernel": np.zeros([4, 5]),
    })  # fmt: skip
    assert sorted(renamed) == [
        *("bn1/moving_mean", "fc/kernel", "layer1.0.downsample.0/kernel", "layer1.0.downsample.1/moving_mean")
    ]
    np.testing.assert_array_equal(renamed["layer1.0.downsample.1/moving_mean"], np.full(3, 3.0))
    np.testing.assert_array_equal(renamed["bn1/moving_mean"], np.full(3, 3.0))
