"""What both translation benchmarks share: encodings, parallel text (a generated pair, too), beam search, BLEU."""
