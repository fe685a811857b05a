"""PROC: Processes that died or stopped."""
