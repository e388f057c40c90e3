"""Tests of containers/."""
