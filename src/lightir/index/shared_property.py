"""A cached property whose first value all threads get."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    shared_property = cached_property
else:

    class shared_property(cached_property):  # noqa: N801 - used as a decorator
        """A `cached_property` that returns one object, also if several threads compute it at once.

        From Python 3.12 on `cached_property` has no lock, so each thread may get the value that it computed itself. But
        the object that the kernel is bound to must be the one that later queries name.
        """

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            if self.attrname in instance.__dict__:
                return instance.__dict__[self.attrname]
            return instance.__dict__.setdefault(self.attrname, self.func(instance))
