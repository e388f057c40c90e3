"""Sorts an evaluation's translations, and computes BLEU, from 0 to 100, as the benchmarks define it.

The Transformer uses tensor2tensor's BLEU (`bleu_wrapper(case_sensitive=False)`), here from tf-models-official's copy:
lower-cased, with mteval-v14's international tokens. GNMT uses sacreBLEU with `-lc --tokenize intl`. The two differ if
an n-gram order has no match.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from common.text import official


def t2t(references: Sequence[str], hypotheses: Sequence[str], lowercase: bool = True) -> float:
    """Returns tensor2tensor's BLEU, with one reference per sentence.

    Raises ValueError if references and hypotheses differ in number, or there are none.
    """
    _check(references, hypotheses)
    bleu = official.load("nlp.metrics.bleu")
    return float(bleu.bleu_on_list(list(references), list(hypotheses), case_sensitive=not lowercase))


def sacre(
    references: Sequence[str], hypotheses: Sequence[str], lowercase: bool = False, tokenize: str = "13a"
) -> float:
    """Returns sacreBLEU, with one reference per sentence; GNMT uses lowercase=True, tokenize="intl".

    Raises ValueError if references and hypotheses differ in number, or there are none.
    """
    import sacrebleu

    _check(references, hypotheses)
    return sacrebleu.corpus_bleu(
        list(hypotheses), [list(references)], lowercase=lowercase, tokenize=tokenize, force=True
    ).score


def _check(references: Sequence[str], hypotheses: Sequence[str]) -> None:
    if len(references) != len(hypotheses) or not references:
        raise ValueError(f"{len(hypotheses)} translations for {len(references)} references")


def in_order(arrays: Mapping[str, np.ndarray], expected: int) -> np.ndarray:
    """Returns the tokens of every evaluation sentence, [expected, n], in the order of the sentences.

    Args:
      arrays: an evaluation's "tokens" [N, n], "index" [N] (sentence number) and "weight" [N] (0 for padding).
      expected: config.num_eval_examples.

    Raises ValueError if a sentence is missing or repeated.
    """
    real = arrays["weight"] > 0
    index, tokens = arrays["index"][real], arrays["tokens"][real]
    if not np.array_equal(np.sort(index), np.arange(expected)):
        raise ValueError(
            f"{len(index)} translations of {len(set(index.tolist()))} sentences, {expected} expected "
            "(config.num_eval_examples)"
        )
    return tokens[np.argsort(index)]
