"""MEM: Host and device memory."""
