"""Converts any text, for `timetotrain data llama31_8b FILES OUT`."""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from common.config import data_description
from common.config.data_description import Description
from common.data import folder_conversion, split_names, text_files
from common.data.folder_conversion import Card, Conversion, Options
from common.errors import UserError, counted
from common.files import copy
from common.text import sentences, text_doubts
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
# Files beside texts that are about them.
_ABOUT = re.compile(r"(readme|licen[cs]e|copying|changelog)(_[a-z]{2})?(\.\w+)*", re.I)
# A book of Project Gutenberg, between its preface and its license.
_GUTENBERG = re.compile(
    r"\*\*\* ?START OF TH(?:E|IS) PROJECT GUTENBERG.*?\*\*\*(.*?)\*\*\* ?END OF TH(?:E|IS) PROJECT GUTENBERG",
    re.S,
)
_LINES = 10_000  # Of a text, that are looked at for doubts.
_LONG, _BOTH = 20, 0.5  # Characters of a line that is hardly there twice by chance, and part of the lines.


def convert(sources: Sequence[Path], out: Path, options: Options) -> Conversion:
    """Writes the tokens of two data sets and their description into `out`.

    A file is a document. Without `options.eval_sources`, and without names such as train.txt and valid.txt for all
    files, the end of each file is held out.

    Raises UserError if a file is not text, the text is too short, or `out` holds something else.

    Args:
      sources: text files, or folders of them.
      options: split, window (`max_length`), tokenizer.
    """
    if not 0 < options.eval_part < 1:
        raise UserError(f"--eval_part={options.eval_part}: must lie between 0 and 1, such as 0.05")
    read = Tokenizer(options.tokenizer) if options.tokenizer else Bytes()
    length = options.max_length or _LENGTH
    texts, held_out = _parts(sources, options)
    _report_both(texts, held_out, options)
    folder_conversion.start(out, "llama31_8b")
    counts = {}
    for name, part in (("train", texts), ("eval", held_out)):
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
        "data.bytes_per_token": sum(len(text.encode()) for text in held_out) / counts["eval"],
    }
    names = ["*.idx", "*.bin", TOKENIZER]
    split = fields["num_train_examples"], fields["num_eval_examples"]
    description = folder_conversion.finish(
        out, "llama31_8b", names, fields, split, options.report.lines, baseline=_baseline(out, read.size)
    )
    facts = [(f"tokens to {name}", f"{count:,}") for name, count in counts.items()]
    facts += [("vocabulary", f"{read.size:,} tokens"), ("window", f"{length} tokens")]
    return Conversion(description, (), "windows", facts)


def _parts(sources: Sequence[Path], options: Options) -> tuple[list[str], list[str]]:
    """Returns the texts to train and to evaluate on."""
    texts = _texts(sources, options)
    if options.eval_sources:
        return list(texts.values()), list(_texts(options.eval_sources, options).values())
    words = {path: split_names.word_of(path.name) or split_names.of_path(str(path)) for path in texts}
    train, held_out = split_names.pair(words)
    if train and all(words.values()):
        options.report.choose("split", "as the files' names say", "the files")
        for path in sorted(texts.keys() - {*train, *held_out}):
            options.report.skip("a split beside those to train and to evaluate on", str(path))
        return [texts[path] for path in train], [texts[path] for path in held_out]
    if train:
        example = f"{train[0]} and {held_out[0]}"
        options.report.suspect("files that may be a split, not taken as one; give --eval", example)
    cut = [_cut(text, options) for text in texts.values()]
    return [text for text, _ in cut], [text for _, text in cut]


def _report_both(texts: Sequence[str], held_out: Sequence[str], options: Options) -> None:
    """Notes text to evaluate on that is also trained on."""
    lines = {line for text in held_out for line in text.split("\n") if len(line) >= _LONG}
    both = {line for text in texts for line in text.split("\n") if line in lines}
    if len(both) > _BOTH * len(lines):
        what = "the same lines to train and to evaluate on"
        options.report.suspect(what, min(both)[:80], len(both))


def _texts(sources: Sequence[Path], options: Options) -> dict[Path, str]:
    """Returns the text of each file; a file in a folder that is not text, or about the others, is left out."""
    contents, report = {}, options.report
    for source in sources:
        inside = folder_conversion.files(source, report) if os.path.isdir(source) else None
        files = [path for path in inside or () if not _ABOUT.fullmatch(path.name)] or inside
        for path in sorted({*(inside or ())} - {*(files or ())}):
            report.skip("a file about the others, by its name", str(path))
        for path in [source] if files is None else files:
            try:
                contents[path] = _read(path, options)
            except UserError as error:
                if inside is None:
                    raise
                report.leave_out("not text", str(path), str(error))
    folder_conversion.check_broken(report.lines, len(contents))
    return contents


def _read(path: Path, options: Options) -> str:
    """Returns a file's text, without the license of Project Gutenberg; notes what looks wrong."""
    text, report = text_files.whole(path), options.report
    form = sentences.markup(path) or "a table" * (path.suffix.lower() in (".csv", ".tsv"))
    if form:
        report.suspect("a file with markup, trained on as it is", f"{path}: {form}")
    if nuls := text.count("\0"):
        report.change("a NUL character, removed", str(path), nuls)
        text = text.replace("\0", "")
    book = "".join(_GUTENBERG.findall(text))
    if len(book) > len(text) / 2:
        report.change("Project Gutenberg's preface and license, left out", str(path))
        text = book
    elif book:
        report.suspect("a book of Project Gutenberg with more around it than a license, kept", str(path))
    lines = text.split("\n")
    text_doubts.report_lines(lines[:: len(lines) // _LINES + 1], report)
    return text


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
            excerpt = read.decode(text.window(window).tolist())[:_SHOWN]
            cards.append(Card("train" if training else "eval", None, excerpt.split("\n") or [""]))
    return cards
