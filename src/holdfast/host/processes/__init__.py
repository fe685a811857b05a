"""Processes of one host: what /proc, py-spy and the kernel report about them."""
