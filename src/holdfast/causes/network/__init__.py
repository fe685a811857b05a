"""NET: Network and rendezvous."""
