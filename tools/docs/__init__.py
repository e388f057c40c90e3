"""Builds the documents: checks their links, writes their tables of measurements, makes their site."""
