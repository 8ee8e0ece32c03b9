"""Modules in which every name is there and none can be called, for kernels that are imported whatever the device."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any, NoReturn


class Refusing:
    """A kernel that is not here: it has any attribute, and a launch (``kernel(...)``, ``kernel[grid](...)``) fails.

    Args:
        name: what the failure says.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_arguments: object, **_options: object) -> NoReturn:
        """Refuse by name."""
        raise NotImplementedError(f"{self._name} needs a device, and this is its stand-in for a CPU")

    def __getitem__(self, _grid: object) -> Refusing:
        return self

    def __contains__(self, _item: object) -> bool:
        # torch asks whether "cpu" is in Triton's backends.
        return False

    def __getattr__(self, name: str) -> Any:
        return refusing(self._name)(name)


@functools.cache
def refusing(owner: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module: a class for a name that begins like one, else a kernel."""

    @functools.cache
    def look_up(name: str) -> Any:
        # What is asked of any object (__path__, __wrapped__) is no kernel.
        if name.startswith("__"):
            raise AttributeError(name)
        # Something is asked whether it is an instance of it.
        return type(name, (), {"__module__": owner}) if name[0].isupper() else Refusing(f"{owner}.{name}")

    return look_up


class _Submodules(MetaPathFinder, Loader):
    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(self._prefix) else None

    def exec_module(self, module: types.ModuleType) -> None:
        module.__getattr__ = refusing(module.__name__)  # type: ignore[method-assign]


def serve_submodules(package: str) -> None:
    """Let every submodule of ``package`` that has no file be imported, as one in which every name refuses."""
    sys.meta_path.append(_Submodules(package))
