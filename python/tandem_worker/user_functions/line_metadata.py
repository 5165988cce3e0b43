"""What a line of the data says of a sample beside its prompt and its label."""


def own_metadata(request, metadata_key):
    """The line's metadata object; without one, all its other keys."""
    own = request["metadata"].get(metadata_key)
    return own if isinstance(own, dict) else request["metadata"]
