"""Builds the documents: writes measurement tables, generates the site."""
