"""Shared parts of the translation benchmarks: encodings, parallel text (also a generated pair), beam search, BLEU."""
