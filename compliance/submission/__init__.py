"""Judges a submission tree: its runs together, its system description, its files, its scores."""
