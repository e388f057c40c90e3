"""Builds the documents: checks links, writes measurement tables, generates the site."""
