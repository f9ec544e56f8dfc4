"""Where to cut a model into chunks: every way is a path, and the best are found exactly."""
