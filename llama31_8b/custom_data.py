"""Converts any text, for `timetotrain data llama31_8b FILES OUT`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion, text_files
from common.data.folder_conversion import Card, Conversion, Options
from common.errors import UserError, counted
from common.files import copy
from llama31_8b import indexed, order
from llama31_8b import input as pipeline
from llama31_8b.presets import PRESETS
from llama31_8b.tokens import Bytes, Tokenizer

PREVIEW = "cpu-tiny"  # The page reads the text with this preset.
TOKENIZER = "tokenizer.json"
_LENGTH = 128  # Tokens of a window, unless --max_length says another number.
_MOST_HELD = 1024  # Windows of an evaluation, as in the benchmark.
_SHOWN = 400  # Characters of a window on the page.
# Text is made tokens in parts of so many characters, which end at a line.
_PART = 1 << 20


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the tokens of two data sets and their description into `out`.

    A file is a document. Without `options.eval_sources`, the end of each file is held out.

    Raises UserError if a file is not text, the text is too short, or `out` holds something else.

    Args:
      sources: text files, or folders of them.
      options: split, window (`max_length`), tokenizer.
    """
    if not 0 < options.eval_part < 1:
        raise UserError(f"--eval_part={options.eval_part}: must lie between 0 and 1, such as 0.05")
    read = Tokenizer(options.tokenizer) if options.tokenizer else Bytes()
    length = options.max_length or _LENGTH
    texts = _texts(sources, options)
    held = (
        _texts(options.eval_sources, options)
        if options.eval_sources
        else [_cut(t, options)[1] for t in texts]
    )
    texts = texts if options.eval_sources else [_cut(text, options)[0] for text in texts]
    folder_conversion.start(out, "llama31_8b")
    counts = {}
    for name, part in (("train", texts), ("eval", held)):
        dtype = indexed.dtype_for(read.size)
        documents = (np.concatenate(list(_tokens(read, text, dtype))) for text in part if text)
        counts[name] = indexed.write(out / name, documents, dtype)
        if not order.window_count(counts[name], length):
            fix = "give more text, a larger --eval_part" if name == "eval" else "give more text"
            raise UserError(
                f"{sources[0]}: {counted(counts[name], 'token')} to {name}, but a sequence needs {length + 1}; "
                f"{fix}, or a smaller --max_length"
            )
    if isinstance(read, Tokenizer):
        copy(options.tokenizer, out / TOKENIZER)
        if read.adds:
            options.report.change(
                "a token that the tokenizer adds is left out, as in the benchmark", read.adds[0]
            )
    windows = {name: order.window_count(count, length) for name, count in counts.items()}
    fields = {
        "vocab_size": read.size,
        "sequence_length": length,
        "num_train_examples": windows["train"],
        "num_eval_examples": min(windows["eval"], _MOST_HELD),
        "data.train_prefix": "train",
        "data.eval_prefix": "eval",
        "data.tokenizer": TOKENIZER if options.tokenizer else "",
        "data.bytes_per_token": sum(len(text.encode()) for text in held) / counts["eval"],
    }
    names = ["*.idx", "*.bin", TOKENIZER]
    split = fields["num_train_examples"], fields["num_eval_examples"]
    description = folder_conversion.finish(
        out, "llama31_8b", names, fields, split, options.report.lines, baseline=_baseline(out, read.size)
    )
    facts = [(f"tokens to {name}", f"{count:,}") for name, count in counts.items()]
    facts += [("vocabulary", f"{read.size:,} tokens"), ("window", f"{length} tokens")]
    return Conversion(description, (), "windows", facts)


def _texts(sources: Sequence[Path], options: Options) -> list[str]:
    """Returns the text of each file; a file in a folder that is not text is left out."""
    found = []
    for source in sources:
        inside = folder_conversion.files(source, options.report) if os.path.isdir(source) else None
        for path in [source] if inside is None else inside:
            try:
                found.append(text_files.whole(path))
            except UserError as error:
                if inside is None:
                    raise
                options.report.leave_out("not text", str(path), str(error))
    folder_conversion.check_broken(options.report.lines, len(found))
    return found


def _cut(text: str, options: Options) -> tuple[str, str]:
    """Returns a text's parts to train and to evaluate on; the second begins after the nearest line's end, if any."""
    place = round(len(text) * (1 - options.eval_part))
    near = text.rfind("\n", place - len(text) // 100, place) + 1
    place = near or place
    return text[:place], text[place:]


def _tokens(read: Bytes | Tokenizer, text: str, dtype: np.dtype) -> Iterator[np.ndarray]:
    """Yields the tokens of each part of a text."""
    first = 0
    while first < len(text):
        last = text.rfind("\n", first, first + _PART) + 1
        last = last if last > first and first + _PART < len(text) else first + _PART
        yield np.array(read.encode(text[first:last]), dtype)
        first = last


def _baseline(out: Path, size: int) -> tuple[float, str]:
    """Returns the cross-entropy of the evaluation's tokens by their frequencies in training, in nats per token."""
    counts = [
        np.bincount(np.fromfile(out / f"{name}.bin", indexed.dtype_for(size)), minlength=size)
        for name in ("train", "eval")
    ]
    probabilities = (counts[0] + 1) / (counts[0].sum() + size)
    return float(-counts[1] @ np.log(probabilities) / counts[1].sum()), "each token by its frequency alone"


def preview(data_dir: Path, description: Description, count: int) -> list[Card]:
    """Returns the first windows of both data sets as text, in the order of a run."""
    config = data_description.apply(PRESETS[PREVIEW], description)
    name = config.data.tokenizer
    read = Tokenizer(data_dir / name) if name else Bytes()
    cards = []
    for training, number in ((True, count), (False, -(-count // 2))):
        text = pipeline.load(config, data_dir, training)
        for window in range(min(number, len(text.order))):
            shown = read.decode(text.window(window).tolist())[:_SHOWN]
            cards.append(Card("train" if training else "eval", None, shown.split("\n") or [""]))
    return cards
