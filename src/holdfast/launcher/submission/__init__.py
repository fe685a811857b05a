"""Write and submit jobs for schedulers: Slurm batch scripts, and Kubernetes manifests."""
