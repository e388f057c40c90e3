"""Presets of the GNMT benchmark, and what of a configuration is logged. TensorFlow-free."""

from __future__ import annotations

from gnmt.fields import Config, Data, Decode

__all__ = ["Config", "Data", "Decode"]
