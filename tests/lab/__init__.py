"""Tests of lab/."""
