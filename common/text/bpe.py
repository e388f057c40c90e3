"""Byte-pair encoding as GNMT's data has it: Moses's tokens (sacremoses), joint merges (subword-nmt), one vocabulary.

A vocabulary is a file of one token per line, of which the first three are <unk>, <s> and </s>: the file that the data
script of tensorflow/nmt and of the MLPerf reference makes. There is no token for padding: lengths tell.
"""

from __future__ import annotations

UNK, BOS, EOS = 0, 1, 2
