"""Tests of the evaluation guard; tests with several ranks use gloo."""
