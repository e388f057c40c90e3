"""Puts trained networks and your own files to use: the verbs data, predict and export."""
