"""Tables of devices, of compiled tiles, and of the kernels' resources."""
