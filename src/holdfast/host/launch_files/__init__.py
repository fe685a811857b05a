"""Parses the variables that launch files set.

scanning       files and folders ─▶ variables, and unreadable files
text_files     texts without a known name, and Markdown
shell          shell and Slurm scripts, Dockerfiles, .env files
python_source  Python programs
yaml_text      YAML and JSON
deepspeed      commands with which DeepSpeed's launcher starts several hosts
"""
