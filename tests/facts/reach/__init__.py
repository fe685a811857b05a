"""Tests of several hosts."""
