"""Tests the reader of .npz files against numpy's own, and against files that lie."""

import zipfile

import numpy as np
import pytest

from common.data import npz
from common.untrusted import NPZ_DAMAGE
from tests import hostile

ARRAYS = {
    "floats": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array(["a", "bcd"]),
    "scalar": np.array(5, np.int64),
    "empty": np.zeros([0, 3]),
    "bool": np.array([True, False]),
    "big": np.arange(3, dtype=">i4"),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_sound_files_are_read_as_numpy_reads_them(tmp_path, save):
    save(tmp_path / "a.npz", **ARRAYS)
    actual = npz.read(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as expected:
        assert list(actual) == expected.files
        for name in expected.files:
            np.testing.assert_array_equal(actual[name], expected[name])
            assert (
                actual[name].dtype == expected[name].dtype
                and not actual[name].flags.writeable
                or not actual[name].size
            )
    with npz.opened(tmp_path / "a.npz") as archive:
        assert "floats" in archive and "other" not in archive
        with pytest.raises(KeyError):
            archive["other"]


@pytest.mark.parametrize(
    "content, message",
    [
        (hostile.header([10**12]), "another size"),
        (hostile.header([-1]), "has the shape"),
        (hostile.header([2**62, 2**62]), "another size"),
        (hostile.header([3], "|O", b"x" * 24), "only a pickle"),
        (hostile.array(np.array([{}], object)), "only a pickle"),
        (b"\x93NUMPY\x03\x00" + bytes(20), "version"),
        (b"no array", "magic"),
        (hostile.header([1], "(" * 50), "header|descr"),
    ],
)
def test_a_member_that_is_not_what_it_says_is_refused(tmp_path, content, message):
    hostile.write(tmp_path / "a.npz", [("a.npy", content)])
    with pytest.raises(ValueError, match=message):
        npz.read(tmp_path / "a.npz")


def test_names_twice_other_members_and_bombs_are_refused(tmp_path):
    one = hostile.array(np.zeros(3))
    hostile.write(tmp_path / "a.npz", [("a.npy", one), ("a.npy", one)])
    with pytest.raises(ValueError, match="two members are called 'a.npy'"):
        npz.read(tmp_path / "a.npz")
    hostile.write(tmp_path / "a.npz", [("a.npy", one), ("a.sh", b"")])
    with pytest.raises(ValueError, match="'a.sh' is not an array"):
        npz.read(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(20 << 20))
    with pytest.raises(ValueError, match="bytes unpack to"):
        npz.read(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "a.npz", a=np.zeros(4 << 20))  # A small one may.
    assert npz.read(tmp_path / "a.npz")["a"].shape == (4 << 20,)


def test_a_wrong_checksum_is_damage(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(zipfile.BadZipFile):
        npz.read(tmp_path / "a.npz")
    assert issubclass(zipfile.BadZipFile, NPZ_DAMAGE)


def test_a_header_whose_bracket_never_closes_is_damage(tmp_path):
    hostile.write(tmp_path / "a.npz", [("a.npy", hostile.header([3]).replace(b"}", b"("))])
    with pytest.raises(NPZ_DAMAGE):
        npz.read(tmp_path / "a.npz")
