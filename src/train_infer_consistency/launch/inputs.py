"""Turn what a user has into runs: scripts, a command line, msprobe files, a runtime_env, a configuration, a plan."""

from __future__ import annotations

import os

from . import stacks
from .entries import (
    hides_run,
    other_trainer,
    parse_yaml,
    read_flags,
    read_overrides,
    read_ray_variables,
    read_variables,
    run_of,
)
from .run import (
    SCENARIOS,
    SLIME,
    VERL,
    VERL_FULLY_ASYNC,
    VERL_HYBRID,
    MsprobeFile,
    Origin,
    Run,
    Setting,
    UnknownValueError,
)
from .shell import read_script
from .shell_values import Field
from .texts import is_here, read_text
from .unknown import CLOSE, plain, unknown_in
from .words import Said

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from .shell import Script

#: Where a run names its msprobe files: side -> Hydra key, slime dest, variable.
DUMP_CONFIG = "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.dump_config_path"
NAMED = {
    "generate": (DUMP_CONFIG, "sglang_msprobe_dump_config", "MSPROBE_GENERATE_CONFIG"),
    "actor": ("", "", "MSPROBE_CONFIG_PATH"),
}
_MSPROBE_KEYS = ("task", "dump_path", "level", "statistics", "tensor")
_RUNTIME_KEYS = ("env_vars", "working_dir", "pip", "py_modules", "excludes")
_VERL_KEYS = ("actor_rollout_ref", "trainer", "data", "algorithm")
_ACTOR_WORDS = ("actor", "train", "old_log_prob", "log_prob")
_PLAN_FILES = ("run.sh", "config_generate.json", "config_actor.json", "runtime_env.json")


def read(paths: Iterable[str], command: list[str] | None = None, stack: str = "") -> list[Run]:
    """Read everything that was given.

    Args:
        paths: files and plans' folders.
        command: a command line, as words.
        stack: a stack's name, or pins such as ``verl=0.9.1,vllm-ascend=0.23.0``.

    Returns:
        One run for each command that starts one; one without a scenario where there is none.

    Raises:
        KeyError: no such stack.
    """
    reader = Reader(stack)
    for path in paths:
        reader.path(path)
    if command:
        reader.command(command)
    return reader.finish()


class Reader:
    """Collects what the inputs hold. ``files`` are texts by path that are taken instead of the disk's."""

    def __init__(self, stack: str = "", files: dict[str, str] | None = None) -> None:
        self.runs: list[Run] = []
        self.loose = Run()  # what belongs to no command
        self.files = files or {}
        self.stack = stack
        self.written: dict[str, Field] = {}
        self.folder = ""
        self.scripts = 0
        self.others: list[Field | None] = []  # programs of verl that start a trainer with a step of its own

    def path(self, path: str) -> None:
        """Read one file or folder."""
        folder = os.path.dirname(path) or "." if os.path.basename(path) == "plan.toml" else path
        if path not in self.files and os.path.isdir(folder) and os.path.exists(path):
            self._plan(folder)
        else:
            self._file(path)

    def _file(self, path: str) -> None:
        text = self._text(path)
        if text is None:
            return
        self.loose.texts[path] = text
        self.folder = os.path.dirname(path)
        ending = os.path.splitext(path)[1].lower()
        reads = {".json": self._json, ".toml": self._toml, ".yaml": self._yaml, ".yml": self._yaml}
        try:
            reads.get(ending, self.script)(path, text)
        except RecursionError:
            self._too_deep(Origin(path))

    def _too_deep(self, origin: Origin) -> None:
        self.loose.unread.append((origin, Said("too-deep")))

    def _text(self, path: str) -> str | None:
        if path in self.files:
            return self.files[path]
        text = read_text(path)
        if isinstance(text, str):
            return text
        self.loose.unread.append((Origin(path), text))
        return None

    def _plan(self, folder: str) -> None:
        plan = os.path.join(folder, "plan.toml")
        found = [os.path.join(folder, name) for name in _PLAN_FILES]
        found = [path for path in found if os.path.exists(path)]
        if os.path.exists(plan):
            self._file(plan)
        if not found:
            self.loose.unread.append((Origin(folder), Said("no-plan")))
        for path in found:
            self._file(path)

    def script(self, path: str, text: str) -> None:
        """A launch script, or a file of arguments alone."""
        self.scripts += 1
        script = read_script(text, path, self.load)
        self._take(script)

    def command(self, words: list[str]) -> None:
        """A command line: words that a shell has already read."""
        from .shell import Command

        origin = Origin("command line")
        whole = Command([Field(word, origin, True) for word in words], {}, {}, origin)
        self.others.append(other_trainer(whole))
        try:
            run = run_of(whole, self.load) or self._arguments(whole.argv)
        except RecursionError:
            self._too_deep(origin)
            return
        self.scripts += 1
        if run is not None:
            self.runs.append(run)

    def _take(self, script: Script) -> None:
        self.written.update(script.written)
        self.loose.unread += script.unread
        self.loose.texts.update(script.texts)
        if script.assumed:
            self.loose.target_only.append(Said("assumed", what=" ".join(sorted(script.assumed))))
        self.loose.target_only += [Said("target-file", path=path) for path in script.elsewhere]
        found: list[Run] = []
        for command in script.commands:
            run = run_of(command, self.load)
            program = "" if run else hides_run(command)
            if run is not None:
                found.append(run)
            elif program:
                self.loose.unread.append((command.origin, Said("hidden", name=program)))
        self.others += map(other_trainer, script.commands)
        if not found and len(script.commands) == 1:
            run = self._arguments(script.commands[0].argv)
            found = [run] if run is not None else []
        self.runs += found

    def _arguments(self, fields: list[Field]) -> Run | None:
        """Arguments without their command: flags are slime's, overrides verl's."""
        first = next((field.text for field in fields), "")
        if first.startswith("--") and not first.startswith("--config"):
            run = Run(SLIME)
            read_flags(run, fields)
        elif "=" in first and first.lstrip("+~'").partition(".")[0] in (
            *_VERL_KEYS,
            "critic",
            "rollout",
            "async_training",
        ):
            run = Run(VERL_HYBRID)
            read_overrides(run, fields)
            run.scenario = _verl(run)
        else:
            return None
        run.entry = fields[0].origin
        return run

    def load(self, path: str) -> tuple[str, str] | None:
        """A file that an input names: written by a script, beside it, or on this machine."""
        if path in self.written:
            field = self.written[path]
            return field.origin.file, field.text
        places = [path, os.path.join(self.folder, path)]
        if unknown_in(path):
            rest = path.rpartition(CLOSE)[2].lstrip("/")  # "$DIR/models/x.sh": beside the script, or above it
            places = [os.path.join(self.folder, up, rest) for up in ("", "..", "../..")] if rest else []
        for place in map(os.path.normpath, places):
            if place in self.files:
                return place, self.files[place]
            if not self.files and is_here(place):
                text = read_text(place)
                if isinstance(text, str):
                    return place, text
                self.loose.unread.append((Origin(place), text))
                return None
        return None

    def _json(self, path: str, text: str) -> None:
        content = parse_json(text)
        if not isinstance(content, dict):
            self.loose.unread.append((Origin(path), Said("no-json")))
        elif any(key in content for key in _RUNTIME_KEYS):
            read_variables(self.loose, content.get("env_vars"), Origin(path), text)
        elif any(key in content for key in _MSPROBE_KEYS):
            self.loose.msprobe.append(MsprobeFile(side_of(path, content), path, content, text, Origin(path)))
        elif "actor_rollout_ref" in content:
            self._configuration(path, content)
        else:
            self.loose.unread.append((Origin(path), Said("other-json")))

    def _yaml(self, path: str, text: str) -> None:
        content = parse_yaml(text)
        if not isinstance(content, dict):
            self.loose.unread.append((Origin(path), Said("no-yaml")))
        elif "actor_rollout_ref" in content:
            self._configuration(path, content)
        elif any(key in content for key in _RUNTIME_KEYS):
            read_variables(self.loose, content.get("env_vars"), Origin(path), text)
        else:
            self.loose.unread.append((Origin(path), Said("other-yaml")))

    def _configuration(self, path: str, content: dict[str, Any]) -> None:
        run = Run(VERL_HYBRID)
        run.entry = Origin(path)
        _flatten(content, "", Origin(path), run.hydra)
        read_ray_variables(run)
        run.scenario = _verl(run)
        self.scripts += 1
        self.runs.append(run)

    def _toml(self, path: str, text: str) -> None:
        import tomllib

        try:
            content = tomllib.loads(text)
        except ValueError as error:
            self.loose.unread.append((Origin(path), Said("no-toml", why=error)))
            return
        if content.get("scenario") not in SCENARIOS:
            self.loose.unread.append((Origin(path), Said("no-scenario", names=", ".join(SCENARIOS))))
            return
        self.stack = self.stack or str(content.get("stack", ""))

    def finish(self) -> list[Run]:
        """The runs, each with what was given beside the commands."""
        if self.scripts and not self.runs:
            where = next(iter(self.loose.texts), "command line")
            other = next(filter(None, self.others), None)
            said = Said("no-command") if other is None else Said("other-trainer", name=plain(other.text))
            self.loose.unread.append((Origin(where) if other is None else other.origin, said))
        runs = self.runs or [self.loose]
        for run in runs:
            if run is not self.loose:
                run.target_only += self.loose.target_only
                run.texts.update(self.loose.texts)
                for name, settings in self.loose.env.items():
                    run.env.setdefault(name, []).extend(settings)
                run.msprobe += self.loose.msprobe
            run.stack = self._versions(run.scenario)
            for side in NAMED:
                self._msprobe(run, side)
        for run in self.runs:  # last, since a file that a run names may be one of these
            run.unread += self.loose.unread
        return runs

    def _versions(self, scenario: str) -> dict[str, str]:
        name = self.stack or stacks.DEFAULT[scenario]
        return stacks.versions(name) if name else {}

    def _msprobe(self, run: Run, side: str) -> None:
        """The msprobe file that a run names for a side: one that was given, or one that is here."""
        path = named(run, side)
        if path is None:
            return
        for file in run.msprobe:
            if os.path.basename(file.path) == os.path.basename(path):
                file.side, file.path = side, path
                return
        loaded = self.load(path)
        if loaded is None:
            run.target_only.append(Said("target-file", path=path))
            return
        content = parse_json(loaded[1])
        if isinstance(content, dict):
            written = self.written.get(path)
            run.texts.setdefault(*loaded)
            origin = Origin(loaded[0]) if written is None else written.origin
            run.msprobe.append(MsprobeFile(side, path, content, loaded[1], origin))
        else:
            run.unread.append((Origin(loaded[0]), Said("no-json")))


def named(run: Run, side: str) -> str | None:
    """The path of a side's msprobe file, as the run names it; None where it names none, or an unknown one."""
    key, dest, variable = NAMED[side]
    try:
        value = run.override(key) if run.scenario in VERL else run.flag(dest)
        if not value and (side == "actor" or run.scenario not in VERL):
            value = run.variable(variable)
    except UnknownValueError:
        return None
    return value if isinstance(value, str) and value else None


def side_of(path: str, content: dict[str, Any]) -> str:
    """The side that a file's name, else its dump_path, tells; "" where neither does."""
    for text in (
        os.path.basename(path).lower(),
        str(content.get("dump_path", "")).rstrip("/").rpartition("/")[2].lower(),
    ):
        if "generate" in text or "infer" in text or "rollout" in text:
            return "generate"
        if any(word in text for word in _ACTOR_WORDS):
            return "actor"
    return ""


def parse_json(text: str) -> object:
    """A JSON text's content; None where it is none, or none that can be read."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _verl(run: Run) -> str:
    fully = any(key.startswith(("async_training.", "rollout.")) for key in run.hydra)
    return VERL_FULLY_ASYNC if fully else VERL_HYBRID


def _flatten(content: dict[str, Any], prefix: str, origin: Origin, settings: dict[str, Setting]) -> None:
    for name, value in content.items():
        key = f"{prefix}{name}"
        settings[key] = Setting(key, value, plain(str(value)), origin)
        if isinstance(value, dict):
            _flatten(value, key + ".", origin, settings)
