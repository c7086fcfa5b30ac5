"""Held-out measurement, and the verdict on it."""
