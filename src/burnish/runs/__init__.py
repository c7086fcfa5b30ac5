"""The folder that a run leaves: logs, checkpoints, locks, and whether a run may be resumed."""
