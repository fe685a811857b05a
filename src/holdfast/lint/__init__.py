"""``holdfast lint``: static analysis that finds collectives which not all ranks reach.

options    rule selection from the command line and pyproject.toml
run        lint paths and select the findings to report
analysis   analyze each component of files, in parallel, with a cache
autofix    apply the fixes that rules offer
watch      lint again when a file changes

The packages, each of which imports only those below it:

rules             turn divergences into findings
interpreter       execute the program once for all ranks
library_models    effects and results of library calls
patterns, divergence   find divergences in the source, and in the effects of a path
abstract_state    the state of the interpreter
sources           files, and their modules, classes and functions
library           tables of library calls
abstract_domain   abstract values, effects of a path, divergences
"""
