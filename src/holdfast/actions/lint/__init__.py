"""``holdfast lint``: files are read, judged by program, and what was found is chosen and excused.

options   what is to be heard, from the command and pyproject.toml     linting   the whole
judging   each program of files, several at once                        cache     what was found before
watch     again where something changes
"""
