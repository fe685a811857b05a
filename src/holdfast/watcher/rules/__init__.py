"""Pure rules: from the rank table to a verdict."""
