"""Rules for the checks of GPUs, PCIe, NUMA and InfiniBand; pure."""
