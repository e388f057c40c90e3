"""Applies trained networks and your own files: the verbs data, predict and export."""
