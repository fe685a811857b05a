"""Launch a job: elastic agent, recovery policy, standby workers, in-process restart, alerts."""
