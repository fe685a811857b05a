"""The elastic agent on top of torch's: rendezvous, workers, standby workers, termination."""
