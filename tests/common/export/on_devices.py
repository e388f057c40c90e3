"""Runs exported programs of several replicas on CPU devices, in a process of its own: `python -m ... FOLDER...`.

Needs jax and no TensorFlow. Each folder gets, for each program, PROGRAM.npz with the losses or the outputs and the
state after the first step.
"""

import json
import pathlib
import sys

import numpy as np

from common.distributed import pjrt_program
from lab.bench.harness.replayed import Replay


def run(folder: pathlib.Path, manifest: dict, program: dict) -> None:
    """Runs one program and saves what it gives."""
    replay = Replay(folder, manifest, program)
    replay.compile()
    report = replay.check()
    actual = {f"output {name}": value for name, value in replay.last_outputs.items()}
    if program["kind"] == "train":
        assert report["unequal_copies"] == [], report["unequal_copies"]
        actual["losses"] = np.array(report["losses"])
        replay.reset()
        replay.step()
        actual |= {f"state {name}": value for name, value in replay.values().items()}
    np.savez(folder / f"{program['name']}.npz", **{k.replace("/", "."): v for k, v in actual.items()})


def main() -> None:
    folders = [pathlib.Path(name) for name in sys.argv[1:]]
    manifests = [json.loads((folder / "manifest.json").read_text()) for folder in folders]
    pjrt_program.prepare(max(manifest["num_replicas"] for manifest in manifests))
    import jax

    jax.config.update("jax_enable_x64", True)
    for folder, manifest in zip(folders, manifests):
        for program in manifest["programs"]:
            run(folder, manifest, program)


if __name__ == "__main__":
    main()
