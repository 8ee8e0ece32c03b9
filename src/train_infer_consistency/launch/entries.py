"""Find the command of a script that starts verl or slime, and turn its arguments into a run's settings."""

from __future__ import annotations

from . import arguments, overrides
from .run import (
    EXPORT,
    RAY_KWARGS,
    RUNTIME_ENV,
    SHELL,
    SLIME,
    VERL_FULLY_ASYNC,
    VERL_HYBRID,
    Origin,
    Run,
    Setting,
    Unknown,
)
from .unknown import plain, unknown_in, wholly_unknown
from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from .shell import Command
    from .shell_values import Field

_SCRIPTS = ("train.py", "train_async.py")
_TRAINERS = ("main_ppo", "fully_async_main", *_SCRIPTS)
#: What runs a script that it is given as a text: here, on another host, or in a container.
_SHELLS = ("bash", "sh", "zsh", "ssh", "pdsh", "docker", "podman", "kubectl", "srun", "mpirun", "tmux", "screen")
#: Python's own options that take a value.
_PYTHON_VALUES = ("-W", "-X", "-c", "--check-hash-based-pycs")
_HYDRA_VALUES = (
    "--config-path",
    "-cp",
    "--config-name",
    "-cn",
    "--config-dir",
    "-cd",
    "--package",
    "-p",
    "--info",
    "-i",
)
_RAY_ENV_VARS = "ray_kwargs.ray_init.runtime_env.env_vars."


def run_of(command: Command, load: Callable[[str], tuple[str, str] | None]) -> Run | None:
    """A run from the command that starts it; None where the command starts none.

    ``load`` finds a file that the command names: its name and text, or None.
    """
    start = _python(command.argv)
    if start is None:
        return None
    scenario, first = _program(command.argv, start)
    rest = command.argv[first:]
    if not scenario or (scenario == SLIME and not any(field.text.startswith("--") for field in rest)):
        return None
    run = Run(scenario)
    run.entry = command.argv[first - 1].origin
    for scope, variables in ((SHELL, command.shell), (EXPORT, command.exported)):
        for name, field in variables.items():
            add_variable(run, name, field.text, field.origin, scope)
    _wrapper(run, command.argv[:start], load)
    if scenario == SLIME:
        read_flags(run, rest)
    else:
        read_overrides(run, rest)
    return run


def _python(argv: list[Field]) -> int | None:
    for number, field in enumerate(argv):
        name = field.text.rpartition("/")[2]
        if name == "torchrun" or (name.startswith("python") and not name.endswith(".py")):
            return number
        if wholly_unknown(field.text) and number + 1 < len(argv) and argv[number + 1].text in ("-m", *_SCRIPTS):
            return number  # $PYTHON -m verl.trainer.main_ppo
    return None


def _program(argv: list[Field], start: int) -> tuple[str, int]:
    """The scenario that a Python command starts, and where its own arguments begin."""
    at = start + 1
    while at < len(argv):
        text = argv[at].text
        if text == "-m":
            return _module(argv[at + 1].text if at + 1 < len(argv) else ""), at + 2
        if text.startswith("-"):
            at += 2 if text in _PYTHON_VALUES else 1
            continue
        name = text.rpartition("/")[2]
        if name in _SCRIPTS:
            return SLIME, at + 1
        if name.endswith(".py"):
            return _module(text.removesuffix(".py").replace("/", ".")), at + 1
        at += 1
    return "", at


def _module(name: str) -> str:
    """The scenario of a module; other trainers that are called main_ppo have steps of their own."""
    if name.rpartition(".")[2] == "fully_async_main":
        return VERL_FULLY_ASYNC
    return VERL_HYBRID if name.endswith("verl.trainer.main_ppo") or name == "main_ppo" else ""


def other_trainer(command: Command) -> Field | None:
    """The program of a command that starts another of verl's trainers, such as main_ppo_sync; else None."""
    for field in command.argv:
        if " " in field.text:
            continue
        name = field.text.removesuffix(".py").replace("/", ".").rpartition(".")[2]
        if name.startswith("main_ppo") and not _module(field.text.removesuffix(".py").replace("/", ".")):
            return field
    return None


def hides_run(command: Command) -> str:
    """The program that is given a script as a text, in which it starts a run: ``ssh host "python3 …"``; else ""."""
    names = [field.text.rpartition("/")[2] for field in command.argv]
    program = next((name for name in names if name in _SHELLS), "")
    texts = [command.fed, *(field.text for field in command.argv if " " in field.text)]
    starts = any("python" in text and any(trainer in text for trainer in _TRAINERS) for text in texts)
    return program if starts else ""


def _wrapper(run: Run, argv: list[Field], load: Callable[[str], tuple[str, str] | None]) -> None:
    """``env A=B`` and ``ray job submit --runtime-env-json=… --`` before the Python command."""
    words = [field.text for field in argv]
    run.submitted = words[:3] == ["ray", "job", "submit"] or any(
        words[at : at + 3] == ["ray", "job", "submit"] for at in range(len(words))
    )
    for number, field in enumerate(argv):
        name, sign, text = field.text.partition("=")
        value = text if sign else argv[number + 1].text if number + 1 < len(argv) else ""
        if name == "--runtime-env-json":
            read_runtime_env(run, value, field.origin)
        elif name == "--runtime-env":
            loaded = load(value)
            if loaded is None:
                run.unread.append((field.origin, Said("not-here", path=plain(value))))
            else:
                run.texts[loaded[0]] = loaded[1]
                read_runtime_env(run, loaded[1], Origin(loaded[0]))
        elif sign and not name.startswith("-") and name.isidentifier():
            add_variable(run, name, text, field.origin, EXPORT)


def read_runtime_env(run: Run, text: str, origin: Origin) -> None:
    """A job's ``runtime_env`` as JSON, or as YAML where a YAML parser is installed."""
    if wholly_unknown(text):
        run.unread.append((origin, Said("env-unknown", why=plain(text))))
        return
    import json

    try:
        content = json.loads(text)
    except ValueError as error:
        content = parse_yaml(text)
        if content is None:
            run.unread.append((origin, Said("env-no-json", why=error)))
            return
    if isinstance(content, dict):
        read_variables(run, content.get("env_vars"), origin, text)


def read_variables(run: Run, variables: object, origin: Origin, text: str) -> None:
    """The ``env_vars`` of a runtime_env."""
    if not isinstance(variables, dict):
        return
    lines = text.splitlines() if origin.line == 0 else []
    for name, value in variables.items():
        line = next((number for number, line in enumerate(lines, 1) if f'"{name}"' in line or f"{name}:" in line), 0)
        place = Origin(origin.file, line) if lines else origin
        if isinstance(value, str):
            add_variable(run, str(name), value, place, RUNTIME_ENV)
        else:  # Ray refuses it: a rule's business
            run.env.setdefault(str(name), []).append(Setting(str(name), value, str(value), place, RUNTIME_ENV))


def parse_yaml(text: str) -> object:
    """A YAML text's content; None where no YAML parser is installed or it is no YAML."""
    try:
        import yaml  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def add_variable(run: Run, name: str, text: str, origin: Origin, scope: str) -> None:
    """One variable of a run."""
    why = unknown_in(text)
    value = text if why is None else Unknown(why)
    run.env.setdefault(name, []).append(Setting(name, value, plain(text), origin, scope))


def read_flags(run: Run, fields: list[Field]) -> None:
    """slime's arguments."""
    unknown, stray = arguments.read(fields, run.slime)
    run.open_ended += unknown
    run.unread += [(origin, Said("stray", word=word)) for origin, word in stray]


def read_overrides(run: Run, fields: list[Field]) -> None:
    """verl's arguments: Hydra's own options, and overrides."""
    at = 0
    while at < len(fields):
        field = fields[at]
        at += 1
        if field.text.startswith("-"):
            name, sign, text = field.text.partition("=")
            if name in _HYDRA_VALUES:
                value = text if sign else fields[at].text if at < len(fields) else ""
                at += not sign
                run.hydra[name] = Setting(name, _text(value), plain(value), field.origin)
        elif wholly_unknown(field.text) or unknown_in(field.text.partition("=")[0]):
            run.open_ended.append((field.origin, plain(field.text)))
        else:
            try:
                overrides.apply(field, run.hydra)
            except overrides.OverrideError as error:
                run.unread.append((field.origin, error.said))
    read_ray_variables(run)


def read_ray_variables(run: Run) -> None:
    """The variables that verl's own settings give to Ray's workers."""
    for key, setting in run.hydra.items():
        if key.startswith(_RAY_ENV_VARS):
            name = key.removeprefix(_RAY_ENV_VARS)
            run.env.setdefault(name, []).append(Setting(name, setting.stored, setting.raw, setting.origin, RAY_KWARGS))


def _text(text: str) -> str | Unknown:
    why = unknown_in(text)
    return text if why is None else Unknown(why)
