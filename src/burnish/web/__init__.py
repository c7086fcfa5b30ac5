"""What all that listens on the network has in common: who may ask, and where it listens."""
