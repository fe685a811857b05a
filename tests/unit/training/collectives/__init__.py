"""The collectives of holdfast, each on real ranks over gloo."""
