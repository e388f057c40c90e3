"""Reads compiled programs for lab/bench/: costs from a step's HLO, and an export's programs as jax runs them."""
