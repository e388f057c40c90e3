"""Layers that tf_keras lacks, or computes less exactly or more slowly, and their helpers."""
