"""Before a job: host checks, rendezvous checks, environment audit, benchmarks of collectives."""
