"""Code that the scripts of lab/bench/ share; imports neither TensorFlow nor a benchmark."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
