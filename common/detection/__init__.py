"""What object detectors share: boxes, anchors, matching, mining, sampling, suppression, ROIAlign, COCO records and
COCO evaluation.
"""
