"""What decides a run: the schema of a configuration, overrides, the clock, LEGW."""
