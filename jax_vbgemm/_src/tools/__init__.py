"""What measures and shows: autotune, calibration, timing, shape files, the demo, the command line."""
