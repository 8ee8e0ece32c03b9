"""Calls what builds an image: buildah (with skopeo), or Docker with BuildKit. Both get the same Dockerfile and context.

What they print goes on to standard error; why a build stopped is told from the line that docker/install.sh ends with.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from train_infer_consistency.errors import ConsistencyError, EvidenceError, FoundError, UnfinishedError, UsageError

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_STOP = re.compile(r"image-stop (\d): (.*)")
_FULL = "no space left on device"
_STATUSES: dict[int, type[ConsistencyError]] = {1: FoundError, 2: UsageError, 3: EvidenceError}


class Builder(Protocol):
    """What builds images."""

    def resolve(self, reference: str) -> str:
        """The digest (``sha256:…``) that an image's name has now; EvidenceError where it cannot be read."""

    def build(self, context: Path, arguments: Mapping[str, str], tag: str, machine: str) -> str:
        """Build the context's Dockerfile under a name and return the image's digest; raises what stopped it."""


def choose(name: str | None) -> Builder:
    """The builder of that name; without one Docker, or else buildah, whichever is installed.

    Raises:
        UsageError: there is no such builder.
        EvidenceError: it is not installed.
    """
    if name not in (None, "docker", "buildah"):
        raise UsageError(f"BUILDER={name} is unknown", "use one of docker, buildah")
    buildx = shutil.which("docker") is not None and _ask("docker", "buildx", "version").returncode == 0
    if buildx and name != "buildah":
        return Docker()
    if name == "docker":
        raise EvidenceError("Docker with buildx is not installed", "install it, or use BUILDER=buildah")
    missing = [program for program in ("buildah", "skopeo") if shutil.which(program) is None]
    if missing:
        raise EvidenceError(f"{' and '.join(missing)} is not installed", f"apt install {' '.join(missing)}")
    return Buildah()


class Buildah:
    """buildah builds, skopeo reads registries; storage and isolation are as configured; names get ``localhost/``."""

    def resolve(self, reference: str) -> str:
        """See :class:`Builder`; an image in the local storage goes before a registry's."""
        local = _ask("buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", reference)
        if local.returncode == 0:
            return local.stdout.strip()
        return _digest(reference, _ask("skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{reference}"))

    def build(self, context: Path, arguments: Mapping[str, str], tag: str, machine: str) -> str:
        """See :class:`Builder`. HEALTHCHECK is kept in Docker's format only."""
        name = f"localhost/{tag}"
        # chroot isolation refuses a network of its own
        network = "host" if os.environ.get("BUILDAH_ISOLATION") == "chroot" else "none"
        command = ["buildah", "build", "--format", "docker", "--layers=false", "--identity-label=false"]
        command += ["--timestamp", arguments["SOURCE_DATE_EPOCH"], "--network", network]
        command += ["--platform", f"linux/{ARCHITECTURES[machine]}", "--tag", name]
        command += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        stream([*command, str(context)])
        return _without_container(name)


def _without_container(name: str) -> str:
    """Take the one thing that differs between two builds, the working container's random id, out of an image.

    The layers are in the storage already, so that only manifest and configuration are written. Returns the digest.
    """
    place = f"containers-storage:{name}"
    manifest: dict[str, Any] = json.loads(_told("skopeo", "inspect", "--raw", place))
    config: dict[str, Any] = json.loads(_told("skopeo", "inspect", "--raw", "--config", place))
    for key in ("container", "container_config"):
        config.pop(key, None)
    data = json.dumps(config, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    manifest["config"] |= {"digest": f"sha256:{digest}", "size": len(data)}
    text = json.dumps(manifest, separators=(",", ":"))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, digest).write_bytes(data)
        Path(folder, "manifest.json").write_text(text, encoding="utf-8")
        Path(folder, "version").write_text("Directory Transport Version: 1.1\n", encoding="utf-8")
        _told("skopeo", "copy", "--quiet", f"dir:{folder}", place)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class Docker:
    """Docker's buildx; the image is loaded into the engine."""

    def resolve(self, reference: str) -> str:
        """See :class:`Builder`."""
        command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", reference]
        return _digest(reference, _ask(*command))

    def build(self, context: Path, arguments: Mapping[str, str], tag: str, machine: str) -> str:
        """See :class:`Builder`; BuildKit writes SOURCE_DATE_EPOCH into the layers where it is told to rewrite times.

        The engine's own BuildKit cannot: with images in containerd it stops where it is told to, else it does not.
        """
        output = f"type=docker,name={tag}"
        if re.search(r"^Driver:\s*docker$", _ask("docker", "buildx", "inspect").stdout, re.MULTILINE):
            print(
                "note: the files' times are this build's, so another build has another digest; for the same one,"
                " 'docker buildx create --use' before, or BUILDER=buildah",
                file=sys.stderr,
                flush=True,
            )
        else:
            output += ",rewrite-timestamp=true"
        with tempfile.TemporaryDirectory() as folder:
            told = Path(folder, "metadata.json")
            command = ["docker", "buildx", "build", "--progress=plain", "--network=none", "--provenance=false"]
            command += ["--platform", f"linux/{ARCHITECTURES[machine]}", "--metadata-file", str(told)]
            command += ["--output", output]
            command += [f"--build-arg={name}={value}" for name, value in arguments.items()]
            stream([*command, str(context)])
            return str(json.loads(told.read_text(encoding="utf-8"))["containerimage.digest"])


def stream(command: Sequence[str]) -> None:
    """Run a builder and pass on what it says.

    Raises:
        FoundError, EvidenceError: docker/install.sh stopped with that status.
        UnfinishedError: it failed in another way: a full disk, or what its last line says.
    """
    stop, last, full = None, "", False
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8"
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            sys.stderr.write(line)
            stop = _STOP.search(line) or stop
            full = full or _FULL in line.lower()
            last = line.strip() or last
    if running.returncode == 0:
        return
    if full:
        raise UnfinishedError(f"{command[0]}: {_FULL}", "make room where it keeps its images, and run it again")
    if stop is not None:
        raise _STATUSES.get(int(stop[1]), UnfinishedError)(stop[2].strip())
    raise UnfinishedError(f"{command[0]} ended with status {running.returncode}: {_plain(last)}")


def _digest(reference: str, answer: subprocess.CompletedProcess[str]) -> str:
    found = re.search(r"sha256:[0-9a-f]{64}", answer.stdout)
    if answer.returncode or found is None:
        raise EvidenceError(
            f"the digest of {reference} could not be read: {_plain(answer.stderr)}",
            "see that its registry can be reached (a login, a proxy), or give another BASE=NAME:TAG",
        )
    return found[0]


def _ask(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _told(*command: str) -> str:
    answer = _ask(*command)
    if answer.returncode:
        raise UnfinishedError(f"{' '.join(command[:2])}: {_plain(answer.stderr)}")
    return answer.stdout


def _plain(text: str) -> str:
    """The last line of what a program said, without addresses, which may hold a password."""
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and (message := re.search(r'msg="(.*)"$', lines[-1])):
        lines.append(message[1].replace('\\"', "'"))
    return re.sub(r"\w*://[^\s'\"]+", "…", lines[-1] if lines else "no reason given").strip()[:200]
