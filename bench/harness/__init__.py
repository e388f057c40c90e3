"""What the scripts of bench/ share; imports neither TensorFlow nor a benchmark."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
