"""CONF: Configuration."""
