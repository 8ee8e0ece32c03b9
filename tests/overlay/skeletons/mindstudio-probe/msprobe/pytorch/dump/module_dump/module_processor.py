"""A stand-in for msprobe's module hooks."""

from __future__ import annotations


class ModuleProcessor:
    module_with_backward_hook: dict[str, bool] = {}  # noqa: RUF012  # upstream's own

    def __init__(self) -> None:
        self.hooked: list[str] = []

    def register_module_hook(self, model_list: list[str], is_verl: bool) -> None:
        for idx, name in enumerate(model_list):
            if is_verl and idx in (1, len(model_list) - 1):
                continue
            prefix_name = f"Module.{name}"
            self.hooked.append(prefix_name)


def make() -> ModuleProcessor:
    return ModuleProcessor()


def run(made: ModuleProcessor) -> object:
    made.register_module_hook(["a", "b", "c", "d"], is_verl=True)
    made.register_module_hook(["e", "f"], is_verl=False)
    return [made.hooked, ModuleProcessor.module_with_backward_hook]
