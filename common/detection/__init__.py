"""Shared parts of object detectors: boxes, anchors, matching, sampling, suppression, ROIAlign, masks, COCO's files."""
