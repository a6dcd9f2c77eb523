"""What a tile and a plan take on a device: occupancy, cost models and their calibration."""
