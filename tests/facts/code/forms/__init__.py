"""Forms in which a guard may stand: programs by name, each with its innocent twin; ``# found`` marks a right answer."""
