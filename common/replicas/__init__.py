"""The only code that knows there are other replicas: one class per engine behind `base.Replicas`."""
