"""Answers questions of the review: borrowed hyperparameters, trees that are sent again, power logs, configurations."""
