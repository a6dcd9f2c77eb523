"""Models of a device: occupancy, the predicted time of tiles and plans, and its calibration."""
