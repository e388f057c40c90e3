"""BLEU, from 0 to 100, as the benchmarks define it.

The Transformer's is tensor2tensor's (`bleu_wrapper(case_sensitive=False)`), here tf-models-official's copy of it:
lower-cased, mteval-v14's international tokens. GNMT's is sacreBLEU's `-lc --tokenize intl`. They differ where an order
of n-grams has no match at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from common.text import official


def t2t(references: Sequence[str], hypotheses: Sequence[str], lowercase: bool = True) -> float:
    """tensor2tensor's BLEU of one reference per sentence.

    Raises:
      ValueError: unequally many.
    """
    _check(references, hypotheses)
    bleu = official.load("nlp.metrics.bleu")
    return float(bleu.bleu_on_list(list(references), list(hypotheses), case_sensitive=not lowercase))


def sacre(
    references: Sequence[str], hypotheses: Sequence[str], lowercase: bool = False, tokenize: str = "13a"
) -> float:
    """sacreBLEU of one reference per sentence; its defaults, or GNMT's: lowercase=True, tokenize="intl".

    Raises:
      ValueError: unequally many.
    """
    import sacrebleu

    _check(references, hypotheses)
    return sacrebleu.corpus_bleu(
        list(hypotheses), [list(references)], lowercase=lowercase, tokenize=tokenize, force=True
    ).score


def _check(references: Sequence[str], hypotheses: Sequence[str]) -> None:
    if len(references) != len(hypotheses) or not references:
        raise ValueError(f"{len(hypotheses)} translations for {len(references)} references")
