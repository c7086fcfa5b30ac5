"""Generation: what an engine gives, and the local one."""
