"""Makes tokens of a text: its bytes, or the tokens of a tokenizer.json (Hugging Face's format). TensorFlow-free."""

import os
from collections.abc import Sequence

from common.errors import UserError


class Bytes:
    """The bytes of a text in UTF-8.

    Attributes:
      size: the number of different tokens.
    """

    size = 256

    def encode(self, text: str) -> list[int]:
        """Returns the bytes of a text."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text; bytes that are not UTF-8 become U+FFFD."""
        return bytes(token for token in tokens if 0 <= token < self.size).decode(errors="replace")


class Tokenizer:
    """The tokens of a tokenizer.json, without those that its template adds at a text's beginning or end.

    The benchmark's data have no BOS and no EOS (mlcommons/training small_llm_pretraining/nemo/README.md).

    Attributes:
      size: the number of different tokens.
      adds: the tokens that the template would add to a text.
    """

    def __init__(self, path: str | os.PathLike):
        """Raises UserError if the file is not a tokenizer, or the package `tokenizers` is absent."""
        try:
            import tokenizers
        except ImportError as error:
            raise UserError(
                f"{path}: reading it needs tokenizers; run `make text`, or pip install tokenizers"
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # The library raises no narrower type.
            message = str(error).partition("\n")[0][:120]
            raise UserError(
                f"{path}: is not a tokenizer.json ({message}); name a fast tokenizer's file"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self.adds = self._added()

    def _added(self) -> tuple[str, ...]:
        with_template = self._tokenizer.encode("a").tokens
        plain = self._tokenizer.encode("a", add_special_tokens=False).tokens
        return tuple(token for token in with_template if token not in plain)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)
