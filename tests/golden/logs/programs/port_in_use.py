"""Never runs: the port of the rendezvous is in use."""
