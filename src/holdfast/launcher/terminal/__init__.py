"""The workers' output on a terminal: pseudo-terminals, their relay process, and the display."""
