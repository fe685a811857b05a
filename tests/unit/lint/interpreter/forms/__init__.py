"""Guards by syntactic form: each bad program with a correct version; ``# found`` marks the line."""
