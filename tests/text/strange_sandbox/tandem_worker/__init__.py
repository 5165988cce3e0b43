"""Tandem's own worker package on a kernel without Landlock."""

__path__.append("python/tandem_worker")

from tandem_worker import sandbox  # noqa: E402


def restrict_by_landlock(writable):
    raise sandbox.Refused("Landlock: Function not implemented")


sandbox.restrict_by_landlock = restrict_by_landlock
