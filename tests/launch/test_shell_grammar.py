"""What bash refuses is never read as fine: compared with ``bash -n`` itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from train_infer_consistency.launch.check import check
from train_infer_consistency.launch.examples import example
from train_infer_consistency.launch.shell import read_script

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="no bash here")

#: Scripts as persons write them; between them every construct of the grammar.
SCRIPTS = (
    """\
#!/usr/bin/env bash
set -xeuo pipefail
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
case "${DEVICE}" in
    gpu) GPUS=8 ;;
    npu | ascend)
        export HCCL_OP_EXPANSION_MODE="AIV"
        GPUS=16
        ;;
    *) echo "no ${DEVICE}" >&2; exit 1 ;;
esac
DATA=(
    data.train_files=/data/train.parquet  # rows
    data.shuffle=False
)
if [ "$GPUS" -gt 8 ]; then
    DATA+=(trainer.nnodes=2)
elif [[ $GPUS == 8 && ( -n $A || $B =~ ^(x|y)$ ) ]]; then
    DATA+=(trainer.nnodes=1)
else
    { echo none; exit 2; } > /dev/null
fi
python3 -m verl.trainer.main_ppo \\
    "${DATA[@]}" \\
    trainer.n_gpus_per_node=$((GPUS / 1)) \\
    "$@" 2>&1 | tee run.log
""",
    """\
pkill -9 sglang || true
sleep 3
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
NVLINK=$(nvidia-smi topo -m 2>/dev/null | grep -o 'NV[0-9][0-9]*' | wc -l)
layers() {
    local out=()
    for ((i=0; i<4; i++)); do
        if (( i == 3 )); then out+=("$i"); fi
    done
    echo "${out[*]}"
}
function wait_for { while ! ray status; do sleep 1; done; }
for host in a b "$(hostname)"; do (ssh "$host" ray start) & done; wait
until true; do :; done
cat > /tmp/a.json <<EOF
{"level": "mix"}
EOF
ray job submit --address="http://127.0.0.1:8265" \\
   --runtime-env-json='{"env_vars": {"A": "1"}}' \\
   -- python3 train.py --lr 1 --colocate
""",
)
#: Words and signs that are put in anywhere.
PIECES = (
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "in", "esac", "select",
    "function", "{", "}", "(", ")", "[[", "]]", "((", "))", ";", ";;", ";&", "&", "&&", "||", "|", "!", "time",
    "coproc", "<", ">", ">>", "'", '"', "`", "$(", "${", "$((", "$'", "A=(", "f()", "=~", "==", "-f", "#", "\n", "x",
)  # fmt: skip


def refuses(text: str) -> bool:
    """Whether ``bash -n`` refuses a script. In ``[[ … ]]`` it says so and still ends with 0."""
    assert BASH is not None
    done = subprocess.run([BASH, "-n", "/dev/stdin"], input=text.encode(), capture_output=True, timeout=60, check=False)
    said = [line for line in done.stderr.decode(errors="replace").splitlines() if "warning:" not in line]
    return done.returncode != 0 or bool(said)


def unread(text: str) -> list[str]:
    return [str(said) for _, said in read_script(text, "run.sh").unread]


@pytest.mark.parametrize("text", SCRIPTS)
def test_what_bash_takes_is_read(text: str) -> None:
    assert not refuses(text)
    assert unread(text) == []


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SCRIPTS), st.sampled_from(["line", "word", "insert", "replace"]), st.data())
def test_what_bash_refuses_is_never_fine(text: str, how: str, data: st.DataObject) -> None:
    pieces = text.splitlines(keepends=True) if how == "line" else text.split(" ")
    at = data.draw(st.integers(0, len(pieces) - 1))
    if how == "insert":
        pieces.insert(at, data.draw(st.sampled_from(PIECES)))
    elif how == "replace":
        pieces[at] = data.draw(st.sampled_from(PIECES))
    else:
        del pieces[at]
    changed = ("" if how == "line" else " ").join(pieces)
    if refuses(changed):
        assert unread(changed)
        assert check(*example("", {"run.sh": changed})).status != 0


@pytest.mark.parametrize(
    "text",
    [
        "if a; then b; fi", "if a\nthen b\nelif c; then d; else e; fi", "if (a) then (b) fi", "if [[ a ]] then b; fi",
        "if (( 1 )) then b; fi", "while a; do b; done", "while a; do (( b )) done", "until a\ndo b; done",
        "for x do a; done", "for x; do a; done", "for x in; do a; done", "for x\nin a b\ndo c; done",
        "for if in a; do b; done", "for ((;;)) do a; done", "for ((i=0;i<1;i++)) { a; }", "select x in a; do b; done",
        "case x in esac", "case x in a) esac", "case x\nin a|b) c;; (d) ;; *) e;& f) ;;& esac", "case x in if) b; esac",
        "case x in (esac) a;; esac", "{ a; }", "{ a;}", "( a )", "((echo a); (echo b))", "(( a * (b + c) ))",
        "[[ a ]]", "[[ ! -f a && ( b || c == d ) ]]", "[[ a =~ ^(x|y z)$ ]]", "[[ a == @(x|y) ]]", "[[ a < b ]]",
        "[[ a &&\n b ]]", "[[ $a -eq 1 ]]", "a [[ b && c", "echo ]]", "echo if then fi }", "a=1 if b", "> x if b",
        "f() { a; } > x", "f () ( a )", "f()\n{ a; }", "function f { a; }", "function f() { a; }", "function f (a)",
        "a && b || c", "a &&\n\n b", "a | b |& c", "a |\n b", "a & b", "a & ", "! a", "! ", "! ! a", "time",
        "time -p a",        "a | time b", "coproc a", "coproc a { b; }", "coproc a (b)", "coproc if a; then b; fi",
        "A=(a b)", "A=( )", "A=(\n a # )\n)", "A+=([x y]=1 b)", "A[x y]=1 b", "a=1 B=(c) d", "declare -A A=(b)",
        "export A=(b)", "echo a[b", "a 2>&1 >&- <<< b", "a <(b) >(c)", "> x", "echo `if`", "cat <<X\n$(if)\nX",
        "echo $(case x in a) b;; esac)", "echo $()", "echo ${A:-$(b)}", "echo $((echo a); (echo b))", "", "# if",
        "echo a#b", "exit 0; a",
    ],
)  # fmt: skip
def test_what_bash_takes(text: str) -> None:
    assert not refuses(text)
    assert unread(text) == []


@pytest.mark.parametrize(
    "text",
    [
        "if a; then b;", "if a; fi", "if; then b; fi", "if a; then fi", "if a; then; b; fi", "if a; then b; else fi",
        "if a; then b; fi x", "if a; then { b; } > x fi", "if a; then b; else c; elif d; then e; fi", "while a; done",
        "while a; do b;", "for", "for x in a & do b; done", "for x in a; b; done", "for ((a;b)); do c; done", "case",
        "case x", "case x in a", "case x in a) b;;", "case x in a b) c;; esac", "case x in a) b;; c", "fi", "then",
        "do", "done", "esac", "in", "else", "}", "]]", "{ a", "{a; }", "{ }", "()", "( a", "a )", "( a ) b",
        "{ a; } b", ";", ";;", "a;;", "a; ; b", "a & & b", "&", "&& a", "a &&", "a ||", "| a", "a |", "a | ! b",
        "! | a", "f() a", "f()", "function", "function f a", "a () b", "a b ()", "coproc", "a && coproc\n", ">",
        "a >\n", "a 2>", "[[ a", "[[ a b ]]", "[[ ( a b ) ]]", "[[ a == b c ]]", "[[ ( a ]]", "[[ a ]] b",
        "[ a == @(x|y) ]", "A=(a | b)", "A=(a; b)", "A=(a", "A=([b c)", "A[b", "a A=(b)", "a > A=(b)",
        "command export A=(b)", "echo $(if)", 'echo "$(if)"', "echo ${A:-$(if)}", "echo $(( $(if) ))", "(( $(if) ))",
        "A[$(if)]=1", "case $(if) in a) b;; esac", "for x in $(if); do b; done", "[[ $(if) ]]", "A=($(if))",
        "a > $(if)", "echo <(if)", "echo $'a", "echo $((1", "((", "echo $(( ` ))", "echo `a\\`",
    ],
)  # fmt: skip
def test_what_bash_refuses(text: str) -> None:
    assert refuses(text)
    assert unread(text)


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("a\nif b; then\n  c\n", "run.sh:2", "if has no end"),
        ("for x in a; do\n  while b; do c; done\n", "run.sh:1", "for has no end"),
        ("f() {\n  a\n", "run.sh:1", "{ has no end"),
        ("a\nfi\n", "run.sh:2", "bash does not take fi here"),
        ("a\n(b))\n", "run.sh:2", "bash does not take ) here"),
        ("if a\n  b\nfi\n", "run.sh:3", "bash does not take fi here"),
        ("a \\\n  ${B:-$(\nif\n)}\n", "run.sh:3", "if has no end"),
        ("bash -c 'a; fi'\n", "run.sh:1", "bash does not take fi here"),
    ],
)
def test_where_it_is_refused(text: str, where: str, said: str) -> None:
    assert [(str(origin), str(one)) for origin, one in read_script(text, "run.sh").unread] == [(where, said)]


def test_a_broken_rule_outranks_what_bash_refuses() -> None:
    broken = "python3 -m verl.trainer.main_ppo trainer.balance_batch=True\nfi\n"
    assert check(*example("", {"run.sh": broken})).status == 1
