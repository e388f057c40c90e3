"""Reads compiled and lowered programs as text: XLA's HLO and StableHLO. Imports the standard library alone."""
