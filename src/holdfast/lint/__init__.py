"""``holdfast lint``: static analysis that finds collectives which not all ranks reach.

options    rule selection from the command line and pyproject.toml
run        lint paths and select the findings to report
analysis   analyze each component of files, in parallel, with a cache
autofix    apply the fixes that rules offer
watch      lint again when a file changes
"""
