"""Read the dumps of torch's flight recorder."""
