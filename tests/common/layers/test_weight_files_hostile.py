"""Tests weights of strangers: no code of a file runs, no other file is read, no size is believed."""

import os
import pickle
import struct
import zipfile

import h5py
import numpy as np
import pytest
import tensorflow as tf

from common.errors import UserError
from common.layers import torch_files, weight_files
from tests import hostile
from tests.common.export import hostile_models
from tests.common.layers.test_weight_files import torch_file


def zipped(folder, content, **storages):
    path = folder / "net.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("net/data.pkl", content)
        for key, data in storages.items():
            archive.writestr(f"net/data/{key}", data)
    return path


def tensor(size, stride, offset=0, key="a"):
    """A pickle, by hand, of {"x": a tensor that views the storage `key`}; as torch.save writes it."""
    numbers = b"".join(pickle.dumps(x, 2)[2:-1] for x in (offset, tuple(size), tuple(stride), False))
    view = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x00" + key.encode()
    view += b"X\x03\x00\x00\x00cpuK\x04tQ"
    return (
        b"\x80\x02}X\x01\x00\x00\x00xctorch._utils\n_rebuild_tensor_v2\n("
        + view
        + numbers
        + b"ccollections\nOrderedDict\n)RtRs."
    )


def test_the_pickle_by_hand_is_sound(tmp_path):
    path = zipped(tmp_path, tensor([2, 2], [2, 1]), a=np.arange(4, dtype="<f4").tobytes())
    np.testing.assert_array_equal(torch_files.torch_arrays(path)["x"], [[0, 1], [2, 3]])


@pytest.mark.parametrize(
    "size, stride, offset",
    [
        ([10**12], [0], 0), ([10**6, 10**6], [0, 0], 0), ([5], [1], 0), ([2], [10**12], 0), ([-1], [1], 0),
        ([1], [1], -1),
    ],
)  # fmt: skip
def test_a_tensor_larger_than_its_storage_is_refused(tmp_path, size, stride, offset):
    path = zipped(tmp_path, tensor(size, stride, offset), a=bytes(16))
    with pytest.raises(UserError, match="net.pth: not a whole file of weights .a tensor"):
        weight_files.read(path)


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps({"x": Evil(os.system, ("touch ran",))}, 2),
        pickle.dumps({"x": Evil(__import__, (hostile.EVIL,))}, 4),
        pickle.dumps({"x": Evil(eval, ("1",))}, 0),
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'touch ran'\nios\nsystem\n.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_no_code_of_a_pickle_runs(tmp_path, content, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"{hostile.EVIL}.py").write_text("open('ran', 'w').close()")
    with pytest.raises(UserError):
        weight_files.read(zipped(tmp_path, content))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02}r"
        + struct.pack("<I", 2**32 - 1)
        + b".",  # A place in the memo: C's unpickler makes room up to it.
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.",
        b"\x80\x04\x8d" + struct.pack("<Q", 10**12) + b"x.",
        b"}K\x01" + b"\x85" * 200_000 + b"K\x01s.",  # A tuple in a tuple ...: its hash would end the process.
        b"(" + b"K\x01" + b"\x85" * 200_000 + b"K\x01d.",
        b"K\x01" + b"\x85" * 200_000 + b"\x90.",
        b"}(" * 100_000 + b".",
    ],
)
def test_a_pickle_fills_no_memory_and_ends_no_process(tmp_path, content):
    with pytest.raises(UserError, match="net.pth"):
        weight_files.read(zipped(tmp_path, content))


def test_lengths_in_the_older_form_are_not_believed(tmp_path):
    torch_file(tmp_path / "net.pth", legacy=True)
    data = (tmp_path / "net.pth").read_bytes()
    first = data.rindex(struct.pack("<q", 210))  # The first storage has 210 numbers.
    for length in (10**12, 2**62, -1):
        (tmp_path / "cut.pth").write_bytes(data[:first] + struct.pack("<q", length) + data[first + 8 :])
        with pytest.raises(UserError, match="cut.pth: not a whole file"):
            weight_files.read(tmp_path / "cut.pth")


def test_an_archive_of_torch_is_no_bomb(tmp_path):
    path = tmp_path / "net.pth"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("net/data.pkl", tensor([1], [1]))
        archive.writestr("net/data/a", bytes(200 << 20))
    with pytest.raises(UserError, match="bytes unpack to"):
        weight_files.read(path)


def test_an_h5_file_names_no_other_file(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["fc/kernel"] = np.ones(3)
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file["fc"] = h5py.ExternalLink("secret.h5", "fc")
    with pytest.raises(UserError, match="net.h5: not a whole file of weights .'fc' is a link"):
        weight_files.read(tmp_path / "net.h5")
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.create_dataset("x", (3,), "f4", external=[(str(tmp_path / "secret.h5"), 0, 12)])
    with pytest.raises(UserError, match="'x' names another file"):
        weight_files.read(tmp_path / "net.h5")
    layout = h5py.VirtualLayout((3,), "f8")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "fc/kernel", (3,))
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with pytest.raises(UserError, match="'x' names another file"):
        weight_files.read(tmp_path / "net.h5")


def test_an_h5_file_is_no_bomb(tmp_path):
    with h5py.File(tmp_path / "net.h5", "w") as file:
        file.create_dataset("x", (10**6, 10**6), "f4", chunks=(1000, 1000))  # Nothing of it is written.
    with pytest.raises(UserError, match="its arrays have 4000000000000 bytes"):
        weight_files.read(tmp_path / "net.h5")


def test_a_saved_model_is_read_without_its_graph_and_is_no_bomb(tmp_path, monkeypatch):
    _, export = hostile_models.model(tmp_path)
    monkeypatch.setattr(tf.saved_model, "load", lambda *_: pytest.fail("its graph was loaded"))
    assert "logits/kernel" in weight_files.read(export)
    tf.raw_ops.SaveV2(
        prefix=str(export / "variables/variables"),
        tensor_names=["x"],
        shape_and_slices=["1000000 1000000 0,2:0,3"],  # A part of 4 TB is there, by its index.
        tensors=[tf.zeros([2, 3])],
    )
    with pytest.raises(UserError, match="not a whole file .*its variables have 4000000000000 bytes"):
        weight_files.read(export)
    (export / "assets.extra/timetotrain.json").unlink()
    with pytest.raises(UserError, match="a SavedModel without .*give one of `timetotrain export`"):
        weight_files.read(export)
