"""Four roles on one frozen base: policy, reference, value, reward."""
