"""Learning from texts that people wrote or judged: SFT and the reward model."""
