"""Configs: frozen dataclasses that are read and written by their type hints alone.

    @config                                  a frozen dataclass whose keywords and types are checked
    read(Stack, {"frame": {"dim": 64}})      from a TOML or JSON table, or a config as it is
    changed(stack, {"dim": 128})             the same with other settings; short names may be used
    write(stack)                             as plain values, which `read` reads back

Hints say how a setting is read: numbers, texts, `Literal`, `X | None`, `tuple[X, ...]`,
`dict[str, X]`, another config, or a *family*, `Annotated[Any, MIXERS]`: a spec string
("longformer(window=129)"), a table with a name ({name = "longformer", window = 129}) or a config.
TOML has no null: the word "none" means it where no other reading of a text fits.

A table is laid over what the config holds already, so it names only what differs. In `changed`, a
setting further inside may be written by its name alone where that name occurs once: `dim` for
`stack.frame.dim`. Every refusal names the place, the rule, the value and the way out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar, dataclass_transform

from weft.config.reading import At, Misfit, build, changed, fit, read
from weft.config.settings import Table, bound, family_of, name_of, settings_of
from weft.config.writing import spec_of, write

__all__ = [
    "At",
    "Misfit",
    "Table",
    "bound",
    "build",
    "changed",
    "checked",
    "config",
    "family_of",
    "fit",
    "name_of",
    "read",
    "settings_of",
    "write",
]

Cls = TypeVar("Cls", bound=type[Any])


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: Cls) -> Cls:
    """Class decorator: a frozen dataclass whose settings go by name, and are checked."""
    return checked(dataclass(frozen=True, kw_only=True)(cls))


def checked(cls: Cls) -> Cls:
    """Let a dataclass read what it is built with by its hints; unknown settings suggest.

    `derives` of the class names settings that it fills in itself where they are None: they are read
    and changed as if they had not been given.
    """
    plain = cls.__init__
    derives = getattr(cls, "derives", ())

    @wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if _is_traced():
            plain(self, *args, **kwargs)
            return
        given = bound(cls, args, kwargs, name_of(cls))
        at, known = At(name_of(cls), home=family_of(cls)), settings_of(cls)
        for key, value in given.items():
            if type(value) is not known[key].hint or type(value) is int:  # ints have a limit
                given[key] = fit(known[key].hint, value, at.under(key))
        if derives:
            own = tuple(key for key in derives if given.get(key) is None)
            object.__setattr__(self, "_derived", own)
        plain(self, **given)

    cls.__init__ = __init__
    if "__str__" not in vars(cls):
        setattr(cls, "__str__", spec_of)  # noqa: B010  # type checkers refuse the assignment
    return cls


def _is_traced() -> bool:
    """Whether torch traces this call: a compiled mask may build patterns, but holds no checks."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()
