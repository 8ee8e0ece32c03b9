"""Launch scripts are read as bash reads them: compared with bash itself, and cases that persons write."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from train_infer_consistency.launch.shell import Script, read_script
from train_infer_consistency.launch.unknown import plain, unknown_in

BASH = shutil.which("bash")
PROBE = "set -f\nprobe() { for one; do printf '[%s]\\0' \"$one\"; done; printf 'end\\0'; }\n"


def ours(text: str) -> list[list[str]]:
    """The arguments of each ``probe`` command, as we read them."""
    script = read_script(text, "run.sh")
    assert script.unread == []
    return [[field.text for field in one.argv[1:]] for one in script.commands if one.argv[0].text == "probe"]


def bash(text: str) -> list[list[str]]:
    """The same, as bash runs it in an empty environment."""
    assert BASH is not None
    done = subprocess.run([BASH, "--norc", "-c", PROBE + text], capture_output=True, env={}, timeout=60, check=False)
    found: list[list[str]] = [[]]
    for item in done.stdout.decode().split("\0")[:-1]:
        if item == "end":
            found.append([])
        else:
            found[-1].append(item[1:-1])
    return found[:-1]


LETTERS = st.text("abz019._/:=,+-@%", min_size=1, max_size=6)
# In quotes anything may stand, but for what ends or expands them.
SINGLE = st.text('ab $"\\#&|;()<>{}[]\n*?~!`', max_size=6).map(lambda text: f"'{text}'")
NAMES = st.sampled_from(["A", "B", "EMPTY", "UNSET"])
DEFAULTS = st.sampled_from(["x", "", "a b", "'q r'", "$B", "${B}"])
VARIABLES = st.one_of(
    NAMES.filter(lambda name: name != "UNSET").map(lambda name: f"${{{name}}}"),
    st.tuples(NAMES, st.sampled_from([":-", "-", ":+", "+"]), DEFAULTS).map(lambda t: f"${{{t[0]}{t[1]}{t[2]}}}"),
)
NUMBERS = st.integers(-9, 99).map(lambda number: f"({number})" if number < 0 else str(number))
ARITHMETIC = (
    st.tuples(NUMBERS, st.sampled_from("+-*/%"), NUMBERS, st.sampled_from(["+", "*", " - "]), NUMBERS)
    .filter(lambda t: not (t[1] in "/%" and t[2] == "0"))
    .map(lambda t: f"$(({t[0]}{t[1]}{t[2]}{t[3]}{t[4]}))")
)
INSIDE = st.one_of(
    st.text("ab '#&|;()<>{}[]\n*?~", max_size=6),
    st.sampled_from(['\\"', "\\$", "\\\\", "\\a", "\\\n"]),
    NAMES.filter(lambda name: name != "UNSET").map(lambda name: f"${{{name}}}"),
    st.tuples(NAMES, st.sampled_from([":-", "-"]), st.sampled_from(["x", "", "a b", "$B"])).map(
        lambda t: f"${{{t[0]}{t[1]}{t[2]}}}"
    ),
    ARITHMETIC,
)
DOUBLE = st.lists(INSIDE, max_size=4).map(lambda parts: '"' + "".join(parts) + '"')
ESCAPES = st.sampled_from(["\\ ", "\\$", "\\'", '\\"', "\\\\", "\\#", "\\;", "\\\n"])
ARRAYS = st.sampled_from(['"${ARGS[@]}"', "${ARGS[@]}", '"${ARGS[*]}"', '"pre${ARGS[@]}post"', '"${NONE[@]}"'])
WORDS = st.lists(st.one_of(LETTERS, SINGLE, DOUBLE, ESCAPES, VARIABLES, ARITHMETIC), min_size=1, max_size=4).map(
    "".join
)
BLANKS = st.sampled_from([" ", "  ", "\t", " \\\n   "])
COMMANDS = st.lists(st.tuples(BLANKS, st.one_of(WORDS, ARRAYS)), max_size=5).map(
    lambda words: "probe" + "".join(blank + word for blank, word in words)
)
SCRIPTS = st.tuples(st.lists(WORDS, max_size=3), st.lists(WORDS, max_size=2), WORDS, COMMANDS).map(
    lambda t: (
        "EMPTY=\nB='b c'\nNONE=()\n"
        f"ARGS=({' '.join(t[0])})  # one\nARGS+=(\n  {' '.join(t[1])}\n  # two\n)\nA={t[2]}\nA+=s\n{t[3]} # three\n"
    )
)


@pytest.mark.skipif(BASH is None, reason="no bash here")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(SCRIPTS)
@example("A=1\nprobe \"$A\"'$A'$A\\$A # $A\n")
@example("probe a#b '#' \"x\"'y'z\n")
@example('A=\'a b\'; probe $A "$A" x$A"$A"y\n')
@example('X=${UNSET:-"a b"}\nprobe $X "${UNSET:-$X}"\n')
@example("A=1 B=2; A=3 probe $A; probe $A\n")
@example("A='a\u00a0b\tc'; probe $A x\u00a0y\n")
@example("probe <<'EOF' a\n$(x) ' \" `\nEOF\nprobe b\n")
@example("probe a 2>&1; probe c 2>/dev/null | cat\n")
@example("probe $((2**3**2)) $((7/-2)) $((-7%3)) $(( (1+2)*3 ))\n")
@example("A='x '; probe $A'y' ${A}z\n")
@example("A=' x'; probe y$A 'z'$A\n")
@example("A=0\nif false; then A=1; else probe $A; fi\n")
@example("A=0\ncase x in a) A=1 ;; *) probe $A ;; esac\n")
@example("for x in 1; do probe y; done; if true; then probe z; fi\n")
@example("probe $'a\\tb\\'c' $\"d\"\n")
@example('A=(1 \'2 3\'); B=("${A[@]}" 4); probe "${B[@]}" "${#B}" ${A[1]}\n'.replace(' "${#B}"', ""))
def test_arguments_are_those_that_bash_gives(text: str) -> None:
    mine = ours(text)
    if any(unknown_in(word) for command in mine for word in command):
        return  # said to be unknown: not a claim
    theirs = bash(text)
    assert mine == theirs


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize(
    "text",
    [
        "A=1; ((A=2)); probe $A", "A=1; ((A++)); probe $A", "A=1; ((A<<=2)); probe $A",
        "A=1; probe $((A+=1)); probe $A", "A=1; for ((A=0; A<2; A++)); do :; done; probe $A",
        "A=1; let A=2; probe $A", "A=1; read -r A <<< 2; probe $A", "A=1; printf -v A 2; probe $A",
        "A=(1); mapfile -t A <<< x; probe ${A[@]}", "A=1; getopts a: A; probe $A", "A=(1 2); A[0]=5; probe ${A[@]}",
        "A=1; A[0]=5; probe $A", "A=(1 2); unset 'A[0]'; probe ${A[@]}", "A=([1]=x [0]=y); probe ${A[@]}",
        "set -- a b; probe \"$@\"", "set -- a; probe $1", "set a; probe ${1:-x}", "typeset -l A; A=Q; probe $A",
        "declare -i A=1; A+=2; probe $A", "IFS=,; A=a,b; probe $A", "A='a b'; IFS=; probe $A",
        "A=1; function g { A=9; }; g; probe $A", "A=1; g() { A=9; }; g; probe $A", "A=1; false && A=2; probe $A",
        "probe $'\\x41'", "probe $'\\101'", "A=(a b); probe \"${A[@]:1}\"", "A=(a b); probe \"${A[@]/#/x}\"",
        "A=1; false && unset A; probe $A", "A=1; if false; then unset A; fi; probe ${A-u}",
        "A=1; g() { unset A; }; probe $A", "A='1+2'; probe $(($A*2)) $((2*${A}))", "probe $((+$1+1)) $((+${1}+1))",
        "true=3; probe $((+$(true)+2))",
    ],
)  # fmt: skip
def test_what_is_not_known_is_said_to_be_unknown(text: str) -> None:
    theirs = bash(text + "\n")
    assert all(
        one == other or any(unknown_in(word) for word in one) for one, other in zip(ours(text), theirs, strict=True)
    )


@pytest.mark.skipif(BASH is None, reason="no bash here")
@pytest.mark.parametrize(
    "text",
    [
        "A=1; readonly A=3; probe $A", "declare A=3; probe $A", "declare -i A=3; probe $A", "A=1; true | A=2; probe $A",
        "A=1; A=2 &\nprobe $A", "A=1; (( A == 1 )); probe $A", "A=1; (( A >= 1 && A <= 2 )); probe $A",
        "set -euo pipefail; probe \"$@\" a", "A=1; cd / && A=2; probe $A", "probe a[0]=b",
        "function g { probe inside; }; g", "A='x y'; IFS=, read -r B <<< x; probe $A",
        "[[ a =~ ^(a|b)$ ]] && probe yes", "if [[ a == @(a|b) ]]; then probe yes; fi",
        "A=(); probe \"${A[@]:-d}\"", "A=(a); probe \"${A[@]:+x}\"", "A=(a b); probe ${A[@]+\"${A[@]}\"}",
        "A=1; (unset A); probe $A", "A=1; bash -c 'A=2'; probe $A", "bash -c 'exit 0'; probe a",
        "bash -c 'exec true'; probe a", "A=1; eval A=2; probe $A",
        "A=-3; probe $((5-A)) $((5 -$A)) $((2*${A})) $(($((2+3))*2))", "A='1+2'; probe $((A*2))",
    ],
)  # fmt: skip
def test_what_is_known_is_what_bash_gives(text: str) -> None:
    mine = ours(text)
    assert mine == bash(text + "\n")


def test_nothing_runs_behind_exec() -> None:
    script = read_script("exec > log\nexec run a\nrun b\n", "run.sh")
    assert [[field.text for field in one.argv] for one in script.commands] == [["run", "a"]]


@pytest.mark.parametrize(
    "text",
    [
        "A=aaaaaaaaaa\n" + "A=$A$A$A$A\n" * 40 + "run $A\n",
        "A=(a a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'run "${A[@]}"\n',
        "A=" + "a" * 100_000 + "\nrun " + '"$A$A$A"\n',
    ],
)
def test_what_grows_without_end_is_unknown(text: str) -> None:
    fields = read_script(text, "run.sh").commands[-1].argv[1:]
    assert all(unknown_in(field.text) for field in fields)
    assert sum(len(field.text) for field in fields) < 1_000_000


@pytest.mark.parametrize("text", ["[[ a =~ ", "A[0]=1 ", "a <<b\nb\n"])
def test_a_long_script_is_read_to_its_end(text: str) -> None:
    assert read_script(text * 2000 + "\nif\n", "run.sh").unread


@pytest.mark.parametrize("text", ["((", "$((", "$(", "if a; then "])
def test_what_is_nested_too_deeply_is_met_at_once(text: str) -> None:
    with pytest.raises(RecursionError):
        read_script(text * 5000, "run.sh")


def commands(text: str) -> dict[str, list[str]]:
    script = read_script(text, "run.sh")
    return {one.argv[0].text: [plain(field.text) for field in one.argv[1:]] for one in script.commands}


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("run $1", ["$1"]),
        ("run ${1:-vllm}", ["vllm"]),
        ('run "$@" x', ["x"]),
        ("run $(hostname)", ["$(hostname)"]),
        ("run `date +%F`", ["$(date +%F)"]),
        ("run $NOWHERE", ["$NOWHERE"]),
        ("run ~/x '~/x'", ["~/x", "~/x"]),
        ("run {a,b}", ["{a,b}"]),
        ("A=1\nif [ -f x ]; then A=2; fi\nrun $A", ["$A"]),
        ("A=1\nif [ -f x ]; then A=1; fi\nrun $A", ["1"]),
        ("if x; then A=1; else A=2; fi\nrun $A", ["$A"]),
        ("if x; then A=1; else A=1; fi\nrun $A", ["$A"]),
        ("A=(x)\nif y; then A+=(z); fi\nrun ${A[@]}", ["x", "$A"]),
        ("[ -z x ] && A=2\nrun ${A:-1}", ["$A"]),
        ("cd /x && A=2\nrun $A", ["2"]),
        ("false || A=2\nrun ${A:-1}", ["$A"]),
        ("A=1\n(A=2)\nrun $A", ["1"]),
        ("case $1 in a|b) A=1;; *) A=2;; esac\nrun $A", ["$A"]),
        # Each branch begins with what was there before the first.
        ("A=0\nif x; then A=1; else run $A; fi", ["0"]),
        ("A=0\nif x; then A=1; elif y; then run $A; fi", ["0"]),
        ("A=1\nif x; then A=2; else A=1; fi\nrun $A", ["$A"]),
        ("A=1\nif x; then A=2; elif y; then A=1; fi\nrun $A", ["$A"]),
        ("A=0\ncase $1 in a) A=1;; *) run $A;; esac", ["0"]),
        ("A=0\ncase $1 in\n  a)\n    A=1\n    ;;\n  b | c) run $A ;;\nesac", ["0"]),
        ("A=1\ncase $1 in a) A=2;; *) A=1;; esac\nrun $A", ["$A"]),
        # Whether an unknown text is empty is unknown, and so is what stands for an empty one.
        ("A=$(date)\nrun ${A:-x}", ["$(date)"]),
        ("A=$(date)\nrun ${A:+x}", ["$(date)"]),
        ("A=$(date)$B\nrun ${A:+x}", ["$(date)$B"]),
        ("A=/$(date)\nrun ${A:+x}", ["x"]),
        ("A='x '\nrun $A'y'", ["x", "y"]),
        ("f() { A=2; }\nA=1\nrun $A", ["1"]),
        ('f() { run "$@"; }', ["$@"]),
        ("for i in 1 2; do run $i; done", ["$i"]),
        ("eval 'run a b'", ["a", "b"]),
        ("bash -c \"run 'a b'\"", ["a b"]),
        ('A=$(cat <<EOF\n{"x": 1}\nEOF\n)\nrun "$A"', ['{"x": 1}']),
        ("run a\nexit 0\nrun b", ["a"]),
        ("run a\r\n", ["a"]),
    ],
)
def test_what_persons_write(text: str, argv: list[str]) -> None:
    assert commands(text)["run"] == argv


def exported(text: str) -> tuple[dict[str, str], dict[str, str]]:
    one = read_script(text, "run.sh").commands[-1]
    return {k: v.text for k, v in one.exported.items()}, {k: v.text for k, v in one.shell.items()}


@pytest.mark.parametrize(
    ("text", "inherited", "left"),
    [
        ("export A=1\nrun", {"A": "1"}, {}),
        ("A=1\nrun", {}, {"A": "1"}),
        ("A=1\nexport A\nrun", {"A": "1"}, {}),
        ("A=1 run", {"A": "1"}, {}),
        ("A=1 other\nrun", {}, {}),
        ("set -a\nA=1\nset +a\nB=2\nrun", {"A": "1"}, {"B": "2"}),
        ("declare -x A=1\nrun", {"A": "1"}, {}),
        ("export A=1\nunset A\nrun", {}, {}),
        ("export A=1\nunset A\nA=2\nrun", {}, {"A": "2"}),
        ("set -aeuo pipefail\nA=1\nrun", {"A": "1"}, {}),
        ("set -o allexport\nA=1\nset +o allexport\nB=2\nrun", {"A": "1"}, {"B": "2"}),
        ("set -- -a\nA=1\nrun", {}, {"A": "1"}),
        ("export A=1 B='x y'\nrun", {"A": "1", "B": "x y"}, {}),
    ],
)
def test_what_a_command_inherits(text: str, inherited: dict[str, str], left: dict[str, str]) -> None:
    assert exported(text) == (inherited, left)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("run 'a", "'"),
        ('run "a', '"'),
        ("run ${A", "${"),
        ("run $(a", "$("),
        ("A=(a", "A=("),
        ("run <<EOF\na\n", "<<EOF"),
    ],
)
def test_what_has_no_end_is_named_with_its_line(text: str, what: str) -> None:
    script = read_script("ok\n" + text, "run.sh")
    assert [(str(origin), said.values["what"]) for origin, said in script.unread] == [("run.sh:2", what)]


def test_each_argument_knows_its_line() -> None:
    text = "ARGS=(\n  --a 1\n  # --b 2\n  --c 3\n)\nrun \\\n  x \\\n  ${ARGS[@]} \\\n  y\n"
    (command,) = read_script(text, "run.sh").commands
    assert [(one.text, one.origin.line) for one in command.argv] == [
        ("run", 6), ("x", 7), ("--a", 2), ("1", 2), ("--c", 4), ("3", 4), ("y", 9),
    ]  # fmt: skip


def test_files_that_a_script_writes() -> None:
    text = "N=2\ncat > /tmp/a.json <<EOF\n{\"n\": $N}\nEOF\ncat <<'EOF' > b.json\n$N\nEOF\ntee c <<EOF\nx\nEOF\n"
    script = read_script(text, "run.sh")
    assert {path: field.text for path, field in script.written.items()} == {
        "/tmp/a.json": '{"n": 2}\n', "b.json": "$N\n", "c": "x\n",
    }  # fmt: skip


def test_a_sourced_file_is_read_where_it_is_here() -> None:
    files = {"models/m.sh": "M=(--x 1)\n"}

    def load(path: str) -> tuple[str, str] | None:
        name = plain(path).removeprefix("$DIR/")
        return (name, files[name]) if name in files else None

    def read(text: str) -> Script:
        return read_script(text, "run.sh", load)

    good = read('source "${DIR}/models/m.sh"\nrun ${M[@]}\n')
    assert [field.text for field in good.commands[0].argv] == ["run", "--x", "1"]
    assert good.commands[0].argv[1].origin.file == "models/m.sh"
    assert [str(said) for _, said in read("source other.sh\n").unread] == ["other.sh is not here"]
    # A file of the target machine is no reason to doubt the script.
    target = read(". /usr/local/set_env.sh\n")
    assert target.unread == []
    assert target.elsewhere == ["/usr/local/set_env.sh"]
