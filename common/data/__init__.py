"""Input pipelines (TFRecord files, record streams, padding, length buckets), and conversion of files into records."""
