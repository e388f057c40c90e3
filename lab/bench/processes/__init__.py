"""Programs that scripts of lab/bench/ start as processes and that are not contenders."""
