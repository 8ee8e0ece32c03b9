"""Entry point of ``consistency``: parse the verb, import its module, turn errors into one line and a status.

Only the module of the verb that is run is imported, so that ``--help`` costs little more than the interpreter, and
``check`` does without argparse as long as nothing is wrong.
"""

from __future__ import annotations

import gc
import os
import sys

from .. import __version__
from ..errors import ConsistencyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

VERBS = {
    "overlay": "list, check, diff, apply, revert, status, drift: the edits over the upstream packages",
    "wheels": "build a stack's wheels with the edits in them",
    "lock": "check or write VERSIONS.lock",
    "doctor": "look at this environment: what is woven, by what, and what contradicts",
    "selftest": "a tiny model through the engines installed here, compared: a report that can be pasted into an issue",
    "plan": "write what a collection run needs: msprobe's files, the environment, the launch script, what it will cost",
    "check": "read a run's launch script and files before it costs a card: what would go wrong, and what to write",
    "compare": "compare the two engines' dumps: do they agree, and if not, which module differs first",
    "collect": "bring logs and the steps that can be compared from many hosts into one folder",
    "pairs": "which inference step and which training step of a run are the same forward, and why others are not",
}
STATUSES = """\
exit status: 0 done, 1 a difference or a drifted edit was found, 2 wrong command line,
             3 an input or source is missing or unreadable, 4 could not finish"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status (docs/reference.md has the table)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):  # what a file or its name holds may be no text that the locale has
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    as_json = "--json" in arguments
    try:
        status = _run(arguments)
        sys.stdout.flush()  # a full disk or a closed pipe is met here, and not when the interpreter ends
        return status
    except ConsistencyError as error:
        return _fail(str(error), error.status, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted; nothing half-written was left", 4, as_json)
    except BrokenPipeError:
        _give_up_stdout()
        return 0
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _fail(f"{error.strerror or error}{where}; mend that and run it again", 4, as_json)
    except Exception as error:  # a bug: one line for the user, the traceback on request
        if os.environ.get("CONSISTENCY_TRACEBACK"):
            raise
        return _fail(
            f"bug: {type(error).__name__}: {error}; CONSISTENCY_TRACEBACK=1 shows where, please report it", 4, as_json
        )


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["check"]:
        gc.disable()  # it takes a tenth of a check's time, and finds nothing in it
        try:
            from . import check

            plain = check.plain_options(arguments[1:])
            if plain is not None:
                return check.run(plain)
        finally:
            gc.enable()
    return _run_any(arguments)


def _run_any(arguments: list[str]) -> int:
    import argparse
    import importlib

    parser = argparse.ArgumentParser(
        prog="consistency",
        description="Train-inference consistency for RL of LLMs.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"train-infer-consistency {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    behind: list[str] = []  # a command line of another program, behind --
    if chosen == "check" and "--" in arguments:
        at = arguments.index("--")
        arguments, behind = arguments[:at], arguments[at + 1 :]
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == chosen:
            module = importlib.import_module(f".{name}", __package__)
            module.add_arguments(verb)
            verb.set_defaults(run=module.run)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # --help, --version and a wrong command line
        return stop.code if isinstance(stop.code, int) else 2
    options.behind = behind
    return int(options.run(options))


def _fail(message: str, status: int, as_json: bool) -> int:
    message = " ".join(message.splitlines())
    try:
        if as_json:
            import json

            print(json.dumps({"error": message, "status": status}, ensure_ascii=False))
        sys.stdout.flush()
    except OSError:  # standard output is what failed
        _give_up_stdout()
    print(f"consistency: {message}", file=sys.stderr)
    return status


def _give_up_stdout() -> None:
    """Send the rest of standard output nowhere, so that the interpreter's own flush at its end is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
