"""Tests of tools/containers/."""
