"""Checks of GPUs, PCIe, NUMA and InfiniBand."""
