"""The statement of change that a woven wheel carries, and a licence's text where the upstream ships none.

Apache-2.0 section 4(b) asks that modified files say so (each woven file's first line does; this names them in
one place); Mulan PSL v2 section 4 asks that recipients get a copy of the licence.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import resources

from .. import __version__
from ..overlay.inspect import UpstreamWeave

NOTICE = "licenses/NOTICE.consistency.txt"
_LICENCE_NAMES = ("licen", "copying", "mulan")


def notices(
    weave: UpstreamWeave, version: str, present: Collection[str], packed: Collection[str] = ()
) -> dict[str, bytes]:
    """The texts to add, by name below ``*.dist-info``.

    Args:
        weave: what was woven.
        version: the woven wheel's version.
        present: the upstream's members in ``*.dist-info``.
        packed: modules of the upstream's source that its own build leaves out and this wheel has.
    """
    texts = {NOTICE: _notice(weave, version, packed)}
    shipped = any(word in path.rpartition("/")[2].lower() for path in present for word in _LICENCE_NAMES)
    name = f"{weave.upstream.licence}.txt"
    ours = resources.files(__package__).joinpath("licences", name)
    if not shipped and ours.is_file():
        texts[f"licenses/{name}"] = ours.read_bytes()
    return texts


def _notice(weave: UpstreamWeave, version: str, packed: Collection[str]) -> bytes:
    upstream = weave.upstream
    changed = [file.path for file in weave.files if file.before is not None]
    added = [file.path for file in weave.files if file.before is None]
    lines = [
        f"{upstream.distribution} {version} is a modified version of {upstream.distribution} ({weave.pin}).",
        "",
        f"It was made by train-infer-consistency {__version__}, overlay consistency.{weave.revision}, by",
        "changing and adding the files named below. Everything else is the upstream's, unchanged, under the",
        f"upstream's own licence ({upstream.licence}), copyright and notices, which stay in force for the",
        "modified files too. The added lines and files are under Apache-2.0. The upstream's authors neither",
        "made nor endorse the changes. The version in METADATA, RECORD, and the tags of a wheel that was built",
        "from source are changed as well.",
        "",
        "Changed:",
        *(f"  {path}" for path in changed),
        "Added:",
        *(f"  {path}" for path in added or ["(none)"]),
        *(["Taken from the same source, though the upstream's own build leaves them out:"] if packed else []),
        *(f"  {path}" for path in packed),
        "",
        "What each edit is for, and every digest before and after, is in consistency.json and",
        "sboms/consistency.cdx.json beside this folder.",
        "",
    ]
    return "\n".join(lines).encode()
