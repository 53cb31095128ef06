"""Who could have written a file that is loaded as code.

A library runs with the rights of whoever loads it. It is taken only where no other user could have
put it there. The file and its folder belong to this user or to root, and nobody else may write to
them. Folders above may be written by this user's own group, and by all where the sticky bit keeps
others from renaming what is not theirs, as in /tmp.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from weft.errors import WeftError

_UNMAPPED = 65534  # owner, inside a container, of what it does not map: folders of the host


def make_private(folder: Path) -> None:
    """The folder and those above it that are missing, for this user alone."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private(folder.parent)
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise WeftError(
            f"{folder} cannot be made: {error.strerror}; name another cache in $WEFT_CACHE"
        ) from None


def check_owner(path: Path) -> None:
    """Refuse a file that someone else owns or may replace, and one that is a link."""
    if not hasattr(os, "getuid"):
        return
    path = path.parent.resolve() / path.name
    if not stat.S_ISREG(os.lstat(path).st_mode):
        _refuse(path, "is a link, or something else than a file")
    for place in (path, path.parent):
        _check(place, (0, os.getuid()), stat.S_IWGRP | stat.S_IWOTH)
    for place in path.parent.parents:
        found = os.stat(place)
        sticky = found.st_mode & stat.S_ISVTX
        own = found.st_gid in (0, os.getgid())
        _check(
            place,
            (0, os.getuid(), _UNMAPPED),
            0 if sticky else stat.S_IWOTH if own else stat.S_IWGRP | stat.S_IWOTH,
        )


def _check(path: Path, owners: tuple[int, ...], forbidden: int) -> None:
    found = os.stat(path)
    if found.st_uid not in owners:
        _refuse(path, f"belongs to user {found.st_uid}")
    if found.st_mode & forbidden:
        _refuse(path, f"may be written by others (mode {stat.S_IMODE(found.st_mode):o})")


def _refuse(path: Path, problem: str) -> None:
    raise WeftError(
        f"native decoding would load code that another user may have put there: {path} {problem}; "
        "remove it, make it private (chmod go-w), or name another cache in $WEFT_CACHE"
    )
