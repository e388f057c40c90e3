"""From files to batches: TFRecords, streams, padding, buckets, and the tools of converters."""
