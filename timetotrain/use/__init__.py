"""Converts your own files and applies trained networks: the verbs data, weights, export and predict."""
