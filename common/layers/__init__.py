"""Layers that tf_keras does not have, or computes worse, and what they need."""
