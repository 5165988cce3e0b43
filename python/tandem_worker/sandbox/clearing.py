"""Removing what reward code left in a folder: in bounded memory and time, however deep and many its folders are.

A folder in a folder is moved up to the top before it is emptied, so that no path, stack or list grows with the depth.
Nothing is followed through a link.
"""

import itertools
import os
import stat
import time


class TookTooLong(Exception):
    """There was more to remove than the time allowed."""


def _give_rights(name, parent):
    """To a folder whose owner may have taken them away; one that has become a link meanwhile is left alone."""
    found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{found}", 0o700)
    finally:
        os.close(found)


def _is_folder(name, parent):
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def _remove_folder(name, top, new_names, give_up):
    _give_rights(name, top)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > give_up:
                    raise TookTooLong
                if entry.is_dir(follow_symlinks=False):
                    _give_rights(entry.name, folder)  # a folder without rights cannot be moved
                    os.rename(entry.name, next(new_names), src_dir_fd=folder, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=folder)
        os.rmdir(name, dir_fd=top)
    finally:
        os.close(folder)


def clear(path, keep=(), seconds=float("inf")):
    """Removes all of the folder but the names in `keep`; TookTooLong or OSError when something stays."""
    give_up = time.monotonic() + seconds
    new_names = (f"{os.urandom(8).hex()}.{number}" for number in itertools.count())
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while names := [name for name in os.listdir(top) if name not in keep]:
            for name in names:
                if time.monotonic() > give_up:
                    raise TookTooLong
                if _is_folder(name, top):
                    _remove_folder(name, top, new_names, give_up)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
