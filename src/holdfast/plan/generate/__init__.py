"""Configurations of frameworks: written from a setup, read back, and carried from one to another.

``files.generate`` writes those of a setup, ``migration.migrate`` carries one over, ``choice.choose`` weighs FSDP
against DeepSpeed. All pass through ``recipe.Recipe``, which has no framework's words; ``mapping.ROWS`` says what
becomes of each of DeepSpeed's keys.
"""
