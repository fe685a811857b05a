"""Checks of interfaces, routes, names, ports and firewall."""
