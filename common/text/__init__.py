"""What both translation benchmarks share: subwords, parallel text, beam search, BLEU."""
