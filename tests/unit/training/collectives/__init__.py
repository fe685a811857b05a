"""Tests of holdfast's collectives on real ranks over gloo."""
