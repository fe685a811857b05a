"""Source files of a program: find, read, parse, and resolve imports between them."""
