"""PPO: the table's columns one by one, the step that fills them, and the updates that learn from them."""
