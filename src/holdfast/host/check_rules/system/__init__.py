"""Rules for the checks of memory, limits, disks, clock and software; pure."""
