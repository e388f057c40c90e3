"""Configuration of a run: schema, presets, overrides, steps and epochs, digests, the form of log lines."""
