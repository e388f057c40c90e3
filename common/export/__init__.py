"""Exports steps (docs/replay.md) and trained networks (docs/export-and-predict.md), and answers with such networks.

rules.py, which lab/bench/replay.py uses too, imports only numpy; recipe.py imports numpy and Pillow.
"""
