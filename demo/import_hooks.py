"""Run a function right after a module was imported, before anyone else takes a name from it.

The adapters in this folder change single functions of upstream modules. Doing so early would import half an upstream
into every process; doing so late would miss whoever has imported the function by name.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Action = Callable[[Any], None]

_waiting: dict[str, list[Action]] = {}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Taken out first: the next line asks all finders, this one included.
        actions = _waiting.pop(fullname, None)
        if actions is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_act(module: ModuleType) -> None:
            execute(module)
            for action in actions:
                action(module)

        spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec


def after_import(name: str, action: Action) -> None:
    """Call ``action(module)`` once ``name`` has been imported; at once if it has been already."""
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(action)
