"""Rules that look at what was meant, and the engine that runs them."""
