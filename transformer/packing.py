"""Packs several sentence pairs into one row, end to end, so that a static shape has little padding.

A packed sequence has tensor2tensor's features: `inputs`, `targets` and, for each token, its sentence's number in the
row from 1 (`..._segmentation`) and its position in the sentence from 0 (`..._position`).
"""

from collections.abc import Iterable, Iterator

from common.errors import UserError

Tokens = list[int]
# Number of open rows; a pair goes into the first row with room (as in tensor2tensor's generator_utils.py).
OPEN_ROWS = 10
SIDES = ("inputs", "targets")


class Row:
    """The pairs of one packed sequence."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tokens, Tokens]] = []
        self.lengths = [0, 0]

    def fits(self, pair: tuple[Tokens, Tokens], length: int) -> bool:
        return all(used + len(side) <= length for used, side in zip(self.lengths, pair))

    def add(self, pair: tuple[Tokens, Tokens]) -> None:
        self.pairs.append(pair)
        self.lengths = [used + len(side) for used, side in zip(self.lengths, pair)]

    def features(self) -> dict[str, Tokens]:
        """Returns the six features, without padding."""
        features: dict[str, Tokens] = {}
        for i, side in enumerate(SIDES):
            sentences = [pair[i] for pair in self.pairs]
            features[side] = [token for sentence in sentences for token in sentence]
            features[f"{side}_segmentation"] = [
                number for number, sentence in enumerate(sentences, 1) for _ in sentence
            ]
            features[f"{side}_position"] = [at for sentence in sentences for at in range(len(sentence))]
        return features


def pack(pairs: Iterable[tuple[Tokens, Tokens]], length: int) -> Iterator[Row]:
    """Yields rows of at most `length` tokens per side; every pair is in exactly one row.

    Raises UserError if a side of a pair is longer than a row.
    """
    rows: list[Row] = []
    for number, pair in enumerate(pairs, 1):
        if max(map(len, pair)) > length:
            raise UserError(
                f"pair {number} has {len(pair[0])} and {len(pair[1])} tokens, a packed sequence takes {length}; "
                "lower --max_length"
            )
        row = next((row for row in rows if row.fits(pair, length)), None)
        if row is None:
            if len(rows) == OPEN_ROWS:
                yield rows.pop(0)
            rows.append(row := Row())
        row.add(pair)
    yield from rows
