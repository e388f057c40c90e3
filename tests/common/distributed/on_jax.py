"""Runs a program of several replicas by jax's public calls, without TensorFlow: `python -m ... FOLDER`.

FOLDER has program.mlir.bc, about.json and values.npz (test_jax_releases.py writes them). Fails unless every result is
what the file says, and unless an argument's memory goes to its result.
"""

import json
import pathlib
import sys

import numpy as np

from common.distributed import pjrt_program


def main(folder: pathlib.Path) -> None:
    about, values = json.loads((folder / "about.json").read_text()), np.load(folder / "values.npz")
    pjrt_program.prepare(about["replicas"])
    import jax

    jax.config.update("jax_enable_x64", True)
    placement = pjrt_program.Placement(jax.devices()[: about["replicas"]])
    donated = {int(argument): result for argument, result in about["donated"].items()}
    artifact = (folder / "program.mlir.bc").read_bytes()
    program = pjrt_program.OnDevices(artifact, placement, about["arguments"], about["results"], donated)
    arguments = [placement.place(list(values[f"argument {i}"])) for i in range(len(about["arguments"]))]
    # A value that jax did not make itself is copied first.
    ((state, result),) = donated.items()
    arguments[state] = program(*arguments)[result]
    places = [piece.unsafe_buffer_pointer() for piece in pjrt_program.pieces(arguments[state])]
    results = program(*arguments)
    assert arguments[state].is_deleted()
    assert [piece.unsafe_buffer_pointer() for piece in pjrt_program.pieces(results[result])] == places
    for i, found in enumerate(results):
        np.testing.assert_allclose(np.stack(pjrt_program.parts(found)), values[f"result {i}"], rtol=1e-12)
    print(f"jax {jax.__version__}: {len(results)} results are right; memory is reused")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
