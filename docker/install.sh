#!/bin/sh
# What the build of the image runs, with its context beside this file: checks the base before anything is laid, then
# installs the woven wheels, lays the overlay in place, and puts the tools into an environment of their own.
# A stop is one line, "image-stop STATUS: what; how to mend it", with the statuses of `consistency`.
set -eu
umask 022
export PYTHONDONTWRITEBYTECODE=1
# --isolated alone would still read the pip.conf of the system and of the Python.
export PIP_CONFIG_FILE=/dev/null

here=$(cd "$(dirname "$0")" && pwd)
home=/opt/train-infer-consistency
share=/usr/share/train-infer-consistency

stop() {
  echo "image-stop $1: $2"
  exit "$1"
}

# The base's own pip settings and caches are left out of it, and every file is known by its digest. What is said is kept in
# a variable: on a full disk no file would have it.
install() {
  requirements=$1
  shift
  said=$(python3 -m pip --isolated "$@" install --quiet --no-deps --no-index --require-hashes --no-compile \
    --no-cache-dir --disable-pip-version-check --no-input --root-user-action=ignore --no-warn-script-location \
    --requirement "$requirements" 2>&1) && return
  echo "$said"
  stop 4 "the wheels were not installed: $(first 'ERROR|error')"
}

# The first line of what was said that begins with one of these words, else the last.
first() {
  echo "$said" | grep -m 1 -E "^($1):" || echo "$said" | tail -n 1
}

consistency() {
  python3 -P -m train_infer_consistency.cli.main "$@"
}

# Looks at the environment as it is now; what is wrong is printed, and the first of it is the reason of the stop.
doctor() {
  status=0
  said=$(consistency doctor --stack "$STACK" "$@" 2>&1) || status=$?
  echo "$said"
  test "$status" -eq 0 || stop "$status" "$(first 'wrong|missing|consistency')"
}

test "$(id -u)" -eq 0 || stop 3 "the base's user is not root, who alone may change it; give a base with USER root"
command -v python3 >/dev/null || stop 3 "the base has no python3 on its PATH; give the stack's base"
python=$(cat "$here/python-version")
found=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
test "$found" = "$python" || stop 3 "the base's python3 is $found, and stack $STACK is for $python; give the stack's base"
python3 -m pip --version >/dev/null 2>&1 || stop 3 "the base's python3 has no pip; give the stack's base"
python3 -m venv --help >/dev/null 2>&1 || stop 3 "the base's python3 has no venv; give the stack's base"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "== the base"
python3 -m zipfile -e "$here"/wheels/train_infer_consistency-*.whl "$work/own"
(
  while read -r name; do set -- "$@" --without "$name"; done <"$here/by-wheel"
  PYTHONPATH=$work/own${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
  doctor "$@"
)

echo "== wheels"
install "$here/wheels/requirements-$STACK.txt"

echo "== overlay"
(
  while read -r name; do set -- "$@" "$name"; done <"$here/in-place"
  consistency overlay apply "$@" || stop $? "the overlay could not be laid; its words are above"
)

echo "== tools"
python3 -m venv --without-pip "$home/tools"
(
  unset PYTHONPATH # what lies there would count as installed
  install "$here/wheels/requirements-tools.txt" --python "$home/tools/bin/python"
)
mkdir -p "$home/bin" "$share"
python3 -c 'import sys; print(sys.executable)' >"$home/training-python"
cp "$here/consistency" "$home/bin/consistency"
chmod 755 "$home/bin/consistency"
cp "$here/sbom.cdx.json" "$share/sbom.cdx.json"

echo "== the image"
doctor "$@"
