"""The frozen base: how a model family is walked layer by layer, and the work that is done once for all roles."""
