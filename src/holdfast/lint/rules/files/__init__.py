"""Rules for files and environment variables."""
