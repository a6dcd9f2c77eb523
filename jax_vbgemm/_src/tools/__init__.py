"""Tools: autotune, calibration, profiling, timing, shape files, the demo, the command line."""
