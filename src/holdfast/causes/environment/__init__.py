"""ENV: Environment and versions."""
