"""Put the mends of a report into the files they are about, and show that as a unified diff."""

from __future__ import annotations

import difflib
import json

from .shell_places import word_at
from .shell_tokens import ShellError
from .words import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .check import Finding, Report
    from .rule import Mend
    from .run import Origin, Run

#: How far behind the line where a value's word begins the word itself may stand (a quoted text of many lines).
_REACH = 60


def corrections(report: Report, language: str) -> str:
    """The corrected lines, and below them what has to be changed by hand."""
    texts: dict[str, str] = {}
    for run in report.runs:
        texts.update(run.texts)
    changed = dict(texts)
    left: list[str] = []
    for finding in report.findings:
        for mend in finding.mends:
            run = next((run for run in report.runs if _knows(run, finding)), report.runs[0])
            try:
                done = _apply(mend, finding, run, changed)
            except ShellError:
                done = False
            if not done:
                left.append(f"{finding.rule.code} {finding.origin}: {mend.text}")
    lines: list[str] = []
    for file, text in texts.items():
        lines += difflib.unified_diff(
            text.splitlines(), changed[file].splitlines(), f"a/{file.lstrip('/')}", f"b/{file.lstrip('/')}", lineterm=""
        )
    if left:
        lines += [f"# {say(language, 'by-hand')}", *[f"#   {line}" for line in dict.fromkeys(left)]]
    return "\n".join(lines) if lines else f"# {say(language, 'no-change')}"


def _knows(run: Run, finding: Finding) -> bool:
    return finding.origin.file in run.texts and (not finding.rule.scenarios or run.scenario in finding.rule.scenarios)


def _apply(mend: Mend, finding: Finding, run: Run, texts: dict[str, str]) -> bool:
    if mend.kind == "msprobe":
        file = mend.file or finding.origin.file
        line = next((one.origin.line for one in run.msprobe if one.origin.file == file), 0)
        return file in texts and _json(mend, file, line, texts)
    if mend.kind == "env":
        return _variable(mend, run, texts)
    if mend.kind == "flag":
        setting = run.slime.get(mend.key.lstrip("-").replace("-", "_"))
        word, values = mend.key, 0 if setting is None else len(setting.raw.split())
    else:
        setting = run.hydra.get(mend.key.lstrip("+~"))
        word, values = mend.key.lstrip("+~") + "=", 0
    if setting is not None and setting.origin.file in texts:
        return _replace(mend, word, setting.origin, values, texts)
    return mend.value is not None and run.entry is not None and run.entry.file in texts and _add(mend, run.entry, texts)


def _find(text: str, word: str, line: int) -> int:
    """Where a word begins, in this line or soon after it; -1 where it is not there."""
    lines = text.split("\n")
    start = sum(len(one) + 1 for one in lines[: max(line - 1, 0)])
    stop = start + sum(len(one) + 1 for one in lines[max(line - 1, 0) : line + _REACH])
    at = start
    while True:
        at = text.find(word, at, stop)
        if at < 0:
            return -1
        begins = at == 0 or text[at - 1] in " \t\n'\"+~("
        ends = word.endswith("=") or text[at + len(word) : at + len(word) + 1] in (
            "",
            " ",
            "\n",
            "=",
            "\t",
            ")",
            '"',
            "'",
        )
        comment = any(one.startswith("#") for one in text[text.rfind("\n", 0, at) + 1 : at].split())
        if begins and ends and not comment:
            return at
        at += len(word)


def _replace(mend: Mend, word: str, origin: Origin, values: int, texts: dict[str, str]) -> bool:
    text = texts[origin.file]
    at = _find(text, word, origin.line)
    if at < 0:
        return False
    start, end, inside = word_at(text, at)
    if mend.kind == "flag" and not text.startswith("=", at + len(word)):
        end = _behind_values(text, end, values)
    if mend.value is None:
        return _cut(origin.file, start, end, texts)
    if inside and mend.text[0] in "'\"":
        return False  # quotes inside quotes
    texts[origin.file] = text[:start] + mend.text + text[end:]
    return True


def _behind_values(text: str, end: int, values: int) -> int:
    """Where a flag's values end, as far as they stand on its line."""
    for _ in range(values):
        after = end
        while text[after : after + 1] in (" ", "\t"):
            after += 1
        sign, more = text[after : after + 1], text[after + 1 : after + 2]
        if after == end or sign in ("", "\\", "\n", "#", ")") or (sign == "-" and not more.isdigit()):
            return end
        end = word_at(text, after)[1]
    return end


def _cut(file: str, start: int, end: int, texts: dict[str, str]) -> bool:
    """Take a word away, and its line where nothing but a continuation is left of it."""
    text = texts[file]
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    if not (text[first:start] + text[end:last]).replace("\\", "").strip():
        texts[file] = text[:first] + text[last + 1 :]
    else:
        texts[file] = text[:start].rstrip(" \t") + " " * (start > first) + text[end:].lstrip(" \t")
    return True


def _add(mend: Mend, entry: Origin, texts: dict[str, str]) -> bool:
    """A setting that is missing goes right behind the program's name."""
    lines = texts[entry.file].split("\n")
    for number in range(max(entry.line - 1, 0), min(entry.line + _REACH, len(lines))):
        line = lines[number]
        found = next(
            (name for name in ("fully_async_main", "main_ppo", "train_async.py", "train.py") if name in line), ""
        )
        if not found or line.lstrip().startswith("#"):
            continue
        if line.rstrip().endswith("\\"):
            indent = next((one for one in lines[number + 1 : number + 2]), "")
            lines.insert(number + 1, f"{indent[: len(indent) - len(indent.lstrip())] or '    '}{mend.text} \\")
        else:
            at = line.index(found) + len(found)
            if line[at : at + 1] not in ("", " "):
                continue
            lines[number] = f"{line[:at]} {mend.text}{line[at:]}"
        texts[entry.file] = "\n".join(lines)
        return True
    return False


def _variable(mend: Mend, run: Run, texts: dict[str, str]) -> bool:
    """Change a variable where it is set; a new one goes into a runtime_env that is written out."""
    for setting in run.env.get(mend.key, ()):
        file = setting.origin.file
        if file not in texts:
            continue
        for form in (f'"{mend.key}"', f'\\"{mend.key}\\"'):
            at = texts[file].find(form)
            if at >= 0 and mend.value is not None:
                return _json_value(
                    file, at + len(form), json.dumps(mend.value).replace('"', form[: form.index('"') + 1]), texts
                )
        at = _find(texts[file], mend.key + "=", setting.origin.line)
        if at >= 0 and setting.scope != "shell":
            end = word_at(texts[file], at)[1]
            if mend.value is None:
                return _cut(file, at, end, texts)
            if setting.scope in ("runtime_env", "ray_kwargs"):
                return False
    for file, text in texts.items():
        for quote in ('"', '\\"'):
            at = text.find(f"{quote}env_vars{quote}")
            brace = text.find("{", at) if at >= 0 else -1
            if brace >= 0 and mend.value is not None:
                empty = text[brace + 1 :].lstrip().startswith("}")
                line = f"{quote}{mend.key}{quote}: {quote}{mend.value}{quote}{'' if empty else ','}"
                texts[file] = f"{text[: brace + 1]}\n    {line}{text[brace + 1 :]}"
                return True
    return False


def _json(mend: Mend, file: str, line: int, texts: dict[str, str]) -> bool:
    text = texts[file]
    begin = sum(len(one) + 1 for one in text.split("\n")[: max(line - 1, 0)])
    at = text.find(f'"{mend.key}"', begin)
    if at < 0:
        brace = text.find("{", begin)
        if brace < 0 or mend.value is None:
            return False
        texts[file] = f"{text[: brace + 1]}\n  {mend.text},{text[brace + 1 :]}"
        return True
    if mend.value is not None:
        return _json_value(file, at + len(mend.key) + 2, mend.value, texts)
    end = _end_of_value(text, at + len(mend.key) + 2)
    if end < 0:
        return False
    rest = text[end:]
    comma = rest.lstrip().startswith(",")
    end += len(rest) - len(rest.lstrip()) + 1 if comma else 0
    head = text[:at] if comma else text[:at].rstrip().removesuffix(",")
    texts[file] = head + (text[end:].lstrip() if comma else text[end:])
    return True


def _json_value(file: str, after: int, value: str, texts: dict[str, str]) -> bool:
    text = texts[file]
    end = _end_of_value(text, after)
    if end < 0:
        return False
    colon = text.index(":", after)
    texts[file] = f"{text[: colon + 1]} {value}{text[end:]}"
    return True


def _end_of_value(text: str, after: int) -> int:
    """Where the JSON value behind a key ends; -1 where none can be read."""
    at = text.find(":", after) + 1
    if not at:
        return -1
    at += len(text[at:]) - len(text[at:].lstrip())
    if text.startswith('\\"', at):  # inside a quoted shell text
        end = text.find('\\"', at + 2)
        return end + 2 if end >= 0 else -1
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:
        return -1
