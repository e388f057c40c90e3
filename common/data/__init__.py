"""Input pipelines: TFRecord files, record streams, padding, length buckets, and helpers for converters."""
