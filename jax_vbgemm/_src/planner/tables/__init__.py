"""What is known of devices and of compiled kernels."""
