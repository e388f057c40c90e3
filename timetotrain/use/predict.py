"""Applies a trained network to files: `timetotrain predict MODEL FILES...`."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the verb's arguments."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a SavedModel of `timetotrain export`, or a checkpoint")
    files = "pictures, videos or folders of them, or texts; - reads a text from standard input"
    add("files", metavar="FILES", nargs="+", help=files)
    add("--json", metavar="FILE", help="write the answers there, not to standard output")
    add("--pictures", metavar="DIR", help="write the pictures with labels, boxes and masks there")
    add("--batch", type=int, default=8, help="examples per call (8)")
    add("--score", type=float, default=0.3, help="lowest score of an object to show (0.3)")
    add("--tokens", type=int, default=64, help="tokens that a text goes on for (64)")
    add(
        "--temperature",
        type=float,
        default=0.0,
        help="0 takes the most probable token, 1 draws as trained (0)",
    )
    add("--seed", type=int, default=0, help="seed of the draws (0)")
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that allow a model more; by default a model counts as a stranger's."""
    parser.add_argument(
        "--allow_plugins",
        action="store_true",
        help="trust and run the functions MODULE:FUNCTION that the model names, of this folder or PYTHONPATH",
    )
    parser.add_argument(
        "--allow_large",
        action="store_true",
        help="take a model whose sizes are far beyond those of the presets",
    )


def run(options: argparse.Namespace) -> int:
    """Predicts; returns 0.

    Raises UserError: see `common.export.inference`; or some files could not be answered, after the answers of the
    others.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from tqdm import tqdm

    from common.errors import UserError, counted, printable
    from common.export import inference, pictures
    from common.export.continuation import Sampling
    from common.export.trained import Trust
    from common.files import write_atomically

    for name, least in (("batch", 1), ("tokens", 1), ("temperature", 0), ("seed", 0)):
        if not least <= (value := getattr(options, name)) < math.inf:
            raise UserError(f"--{name}={value}: must be at least {least}")
    trust = Trust(options.allow_plugins, options.allow_large)
    network = inference.load(options.model, trust)
    has_pictures = network.kind in ("classes", "objects")
    if options.pictures and not has_pictures:
        raise UserError("--pictures: this network answers no pictures; leave it out")
    lines, bad = [], 0
    colors = pictures.palette(network.labels) if options.pictures else {}
    files, others = inference.files_in(network, options.files)
    for name in others:
        print(printable(f"skipped: {name}: not of the kind that the network takes"), file=sys.stderr)
    if not files:
        raise UserError(f"{options.files[0]}: no file in it that the network takes; name others")
    sampling = Sampling(options.tokens, options.temperature, options.seed)
    answers = inference.ask(network, files, options.batch, options.score, sampling)
    for answer in tqdm(answers, total=len(files), unit="file", disable=not sys.stderr.isatty()):
        if "error" in answer:
            bad += 1
            print(printable(f"left out: {answer['error']}"), file=sys.stderr)
            continue
        if options.pictures:
            answer["picture"] = str(pictures.draw(answer, options.pictures, colors))
        lines.append(json.dumps(_plain(answer), ensure_ascii=False))
        if not options.json:
            print(lines[-1], flush=True)
    if options.json:
        import pathlib

        text = "[\n" + ",\n".join(lines) + "\n]\n"
        # A file name that is not UTF-8 becomes a JSON escape.
        write_atomically(pathlib.Path(options.json), text.encode(errors="backslashreplace"))
    if network.seconds:
        print(network.measured(), file=sys.stderr)
    if bad:
        raise UserError(f"{counted(bad, 'input')} left out, as the lines above say; the others are answered")
    return 0


def _plain(answer: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer ready for JSON: a mask becomes pycocotools run lengths, over the whole picture."""
    if not any("mask" in one for one in answer.get("objects", ())):
        return answer
    from common.export.pictures import outlines

    return {**answer, "objects": outlines(answer)}
