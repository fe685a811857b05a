"""The training loop: resumes, saves, and applies the recovery policy after a failure."""
