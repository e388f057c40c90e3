"""The verb `systems`: describes machines, and compiles presets for machines that are absent."""
