"""Rules for the checks of interfaces, routes, names, ports and firewall; pure."""
