"""Checks of memory, limits, disks, clock and software."""
