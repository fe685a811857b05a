"""Sensors for one host: /proc, cgroups, GPUs, interfaces, Python stacks, versions.

Sensors report and never judge.
"""
