"""Compares submissions: borrowed hyperparameters, and trees that are sent again."""
