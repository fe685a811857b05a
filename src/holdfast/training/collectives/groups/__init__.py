"""Process groups: their members and hosts, creation, and which ranks have entered a call."""
