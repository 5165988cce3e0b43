"""Chat templates, which come with a model from anywhere: rendered within limits."""
