"""What object detectors share: boxes, anchors, matching, mining, suppression, COCO records and COCO evaluation."""
