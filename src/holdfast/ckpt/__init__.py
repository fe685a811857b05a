"""Foreign checkpoint formats: inspect, verify, convert, diff."""
