"""What files set before or in a job: shell and Slurm scripts, Dockerfiles, YAML, JSON, .env files, Python programs.

scanning       files and folders ─▶ what they set, and what could not be read
shell          shell and Slurm scripts, Dockerfiles, .env files
python_source  what a program does to its environment
yaml_text      YAML and JSON
deepspeed      files that DeepSpeed sends along
"""
