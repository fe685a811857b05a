"""GPU: Devices, drivers, links."""
