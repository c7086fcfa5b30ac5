"""State-action pairs: every generated token, as rows to read and columns to compute."""
