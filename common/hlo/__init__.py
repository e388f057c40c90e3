"""Parses the text of compiled and lowered programs: XLA's HLO and StableHLO. Imports only the standard library."""
