"""Loading the base model and preparing it for its roles."""
