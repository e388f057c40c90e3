"""Reads one log and judges it by its round's rules."""
