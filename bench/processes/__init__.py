"""Programs that scripts of bench/ start as processes and that are no contenders."""
