"""Runs a benchmark from the command line: its log, results, progress and errors."""
