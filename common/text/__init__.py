"""Shared parts of the translation benchmarks: encodings, parallel text (also generated), beam search, BLEU."""
