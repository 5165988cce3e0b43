"""Tandem's own worker package on a kernel without Landlock."""

__path__.append("python/tandem_worker")

from tandem_worker.sandbox import kernel  # noqa: E402


def landlock_version():
    raise kernel.Refused("Landlock: Function not implemented")


kernel.landlock_version = landlock_version
