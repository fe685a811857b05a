"""Terminal output and HTML page of ``holdfast plan``."""
