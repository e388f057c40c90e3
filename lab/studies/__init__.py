"""Runs on real data that take minutes to hours: `make study STUDY=name`. Each writes lab/studies/<name>/."""
