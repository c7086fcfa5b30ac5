"""Services on the network: rewards, judges, and servers that generate."""
