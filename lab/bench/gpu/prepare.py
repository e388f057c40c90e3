"""Writes the exports that lab.bench.gpu measures, and packs them for a machine without a network.

    python -m lab.bench.gpu.prepare FOLDER [--only NAME ...]

Writes FOLDER/exports.tar.xz (about 50 MB). It contains `full/NAME`, full-size steps in bf16 without expected losses,
and `small/NAME`, steps in float64 with the losses and weights of TensorFlow's uncompiled step. `photographs/` has real
photographs as TFRecords, if lab.studies finds their data set. `llama/` has steps of Llama 3.1 8B, without values. All
of it also stays unpacked in FOLDER. Needs TensorFlow, and 8 GB of memory for the Transformer.
"""

import argparse
import itertools
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

from common.errors import UserError, answering
from lab.bench.harness import ROOT

ARCHIVE = "exports.tar.xz"
PHOTOGRAPHS = 1000  # Of the data set.
_ALONE = ["--config.replicas=single", "--config.num_replicas=1"]


def _full(system: str, batch: int, *more: str) -> list[str]:
    sizes = [f"--config.global_batch_size={batch}", f"--config.eval_batch_size={batch}"]
    card = [f"--system={system}", "--config.hardware=h200-1", "--config.precision=bf16"]
    return [*card, *_ALONE, *sizes, *more, "--export_reference=none"]


def _small(batch: int, *more: str) -> list[str]:
    sizes = [f"--config.global_batch_size={batch}", f"--config.eval_batch_size={batch}"]
    reference = "--export_reference=uncompiled"  # The compiled one takes minutes on a CPU.
    return ["--system=cpu-tiny", "--config.precision=fp64", *sizes, *more, reference]


# The largest programs first.
FULL = {
    # On noise the preset's rate diverges in the second step, and NaNs may change a step's time.
    "maskrcnn": _full("h100-8", 4, "--config.optimizer.base_learning_rate=1e-6", "--export_programs=train-0"),
    "gnmt": _full("tpu-v3-32", 256, "--config.bucket_limits=48"),
    "transformer": _full("tpu-v3-32", 32),
    "resnet": _full("tpu-v3-32", 256, "--config.batch_norm_span=256"),
    "ssd": _full("tpu-v3-32", 128, "--config.batch_norm_span=128"),
    "tsm_kinetics": _full("summit-1", 16),
}
SMALL = {
    "maskrcnn": _small(2),
    "gnmt": _small(4, "--config.bucket_limits=18,36"),
    "ssd": _small(2),
    "transformer": _small(2, "--config.layers=2"),
    "tsm_kinetics": _small(2),
    "resnet": _small(4, "--config.width=8", "--config.image_size=32"),
    "ptb": _small(4),
    "mnist": _small(8, "--config.model=mlp", "--config.hidden_units=32", "--config.dropout=0.2"),
}
_LLAMA = [
    "--system=h200-1", "--config.division=open", "--config.accumulation_steps=1", "--config.global_batch_size=1",
    "--noexport_values",
]  # fmt: skip
_TWO_LAYERS = [*_LLAMA, "--config.layers=2", "--config.vocab_size=4096", "--config.sequence_length=2048"]
# A step of the full network on one sequence, and two layers with each form of attention (lab/bench/gpu/llama.py).
LLAMA = {
    "full": _LLAMA,
    "fused": [*_TWO_LAYERS, "--config.attention=fused"],
    "plain": [*_TWO_LAYERS, "--config.attention=plain"],
}
KINDS = {"full": FULL, "small": SMALL, "llama": LLAMA}


def export(kind: str, name: str, folder: Path) -> float:
    """Writes the export `folder/KIND/NAME` in its own process; returns the seconds that it took.

    Raises UserError if the process failed; the message has its last line.
    """
    began, flags = time.monotonic(), KINDS[kind][name]
    if not any(flag.startswith("--export_programs") for flag in flags):
        flags = [*flags, "--export_programs=train"]
    module = "llama31_8b" if kind == "llama" else name
    command = [sys.executable, "-m", module, *flags, f"--export={folder / kind / name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"{kind}/{name}: {last}; to see all of it: {' '.join(command[1:])}")
    return time.monotonic() - began


def pack(folder: Path, archive: Path) -> None:
    """Packs the exports of `folder` into the archive, with files of one kind next to each other."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        paths = [path for kind in KINDS for path in (folder / kind).glob("*/*")]
        paths += (folder / "photographs").glob("*")
        for path in sorted(paths, key=lambda path: (path.suffix, path)):
            if path.is_file():
                packed.add(path, path.relative_to(folder).as_posix())


def photographs(folder: Path) -> None:
    """Writes the photographs as training and validation data, unless they exist or there is no data set."""
    from common.data import tfrecords
    from lab.studies.data import unpack

    if folder.is_dir():
        return
    try:
        photos = sorted(unpack("imagenet1000_256").glob("*.JPEG"))
    except UserError as error:
        print(f"photographs: left out; {error}", flush=True)
        return
    serialized = [
        tfrecords.example({"image/encoded": photo.read_bytes(), "image/class/label": label})
        for label, photo in enumerate(photos, 1)
    ]
    folder.mkdir(parents=True)
    for split, i in itertools.product(("train", "validation"), range(8)):
        tfrecords.write(folder / tfrecords.shard_name(split, i, 8), serialized[i::8])


@answering()
def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("folder", type=Path, help="gets exports.tar.xz")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="as full/resnet or small; default: all")
    options = parser.parse_args()
    names = [(kind, name) for kind, rows in KINDS.items() for name in rows]
    selection = [
        (kind, name)
        for kind, name in names
        if options.only is None or {kind, f"{kind}/{name}"} & set(options.only)
    ]
    if not selection:
        raise UserError(f"--only={' '.join(options.only)}: known are {', '.join('/'.join(x) for x in names)}")
    errors = export_all(selection, options.folder)
    photographs(options.folder / "photographs")
    archive = options.folder / ARCHIVE
    pack(options.folder, archive)
    print(f"{archive}: {archive.stat().st_size / 1e6:.1f} MB")
    if errors:
        raise UserError(f"{len(errors)} of {len(selection)} exports failed: {'; '.join(errors)}")


def export_all(selection: list[tuple[str, str]], folder: Path) -> list[str]:
    """Makes exports in `folder`; returns the errors of those that failed."""
    errors = []
    for kind, name in selection:
        shutil.rmtree(folder / kind / name, ignore_errors=True)
        try:
            print(f"{kind}/{name}: {export(kind, name, folder):.0f} s", flush=True)
        except UserError as error:
            errors.append(str(error))
            print(error, flush=True)
    return errors


if __name__ == "__main__":
    sys.exit(run())
