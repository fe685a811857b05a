"""Rules for process groups, point-to-point calls and asynchronous handles."""
