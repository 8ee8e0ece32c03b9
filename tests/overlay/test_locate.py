"""Where a package is found, and where it must not be found: told by what Python itself imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_infer_consistency.errors import EvidenceError
from train_infer_consistency.overlay.locate import Location, distributions, doubled, environment, find
from train_infer_consistency.overlay.model import Upstream

from .in_place import SKEL, install, make_editable, upstreams_and_lock, write_metadata, write_tree


@pytest.fixture
def skel(tmp_path: Path) -> Upstream:
    return upstreams_and_lock(tmp_path / "overlays")[0]["skel"]


def at(skel: Upstream, site: Path) -> Location | None:
    return find(environment(site), skel)


def test_regular_install(skel: Upstream, tmp_path: Path) -> None:
    info = install(tmp_path / "site", "skel", SKEL)
    found = at(skel, tmp_path / "site")
    assert found is not None
    assert (found.root, found.kind, found.version) == (tmp_path / "site", "regular", "1.0")
    assert (found.distribution, found.dist_info, found.shadowed) == ("skel-engine", info, ())


@pytest.mark.parametrize("style", ["finder", "pth", "develop"])
def test_editable_install(skel: Upstream, tmp_path: Path, style: str) -> None:
    checkout = write_tree(tmp_path / "checkout", SKEL)
    make_editable(tmp_path / "site", "skel", checkout, style)
    found = at(skel, tmp_path / "site")
    assert found is not None
    assert (found.root, found.kind, found.version) == (checkout, "editable", "1.0")


@pytest.mark.parametrize("folder", ["", "src", "python"])
def test_checkout_root(skel: Upstream, tmp_path: Path, folder: str) -> None:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/pyproject.toml").touch()
    write_tree(tmp_path / "checkout" / folder, SKEL)
    found = at(skel, tmp_path / "checkout")
    assert found is not None
    assert (found.root, found.kind) == (tmp_path / "checkout" / folder, "tree")


def test_folder_of_the_same_name_is_no_package(skel: Upstream, tmp_path: Path) -> None:
    """``/skel`` is the checkout that holds ``/skel/skel``; Python would take the outer one for a namespace."""
    write_tree(tmp_path / "skel", SKEL)
    assert at(skel, tmp_path) is None


def test_metadata_of_another_copy_is_not_taken(skel: Upstream, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "skel", SKEL, "1.0+consistency.1")
    first = write_tree(tmp_path / "first", SKEL)
    (site / "a.pth").write_text(f"# comment\n\n{tmp_path / 'missing'}\n{first}\nimport os\n")
    found = at(skel, site)
    assert found is not None
    assert (found.root, found.shadowed) == (site, (first / "skel",))
    first_site = tmp_path / "other"
    first_site.mkdir()
    (first_site / "a.pth").write_text(f"{first}\n{site}\n")
    found = at(skel, first_site)
    assert found is not None
    assert (found.root, found.kind, found.version) == (first, "tree", None)
    assert found.shadowed == (site / "skel",)


def test_broken_metadata_and_finders_are_passed_over(skel: Upstream, tmp_path: Path) -> None:
    site = write_tree(tmp_path / "site", SKEL)
    (site / "skel_engine-0.9.dist-info").mkdir()  # what a killed uninstallation leaves
    (site / "b.pth").write_text("import __editable___skel_finder; __editable___skel_finder.install()\n")
    (site / "__editable___skel_finder.py").write_text("MAPPING = {")
    (site / ".hidden.pth").write_text(f"{write_tree(tmp_path / 'second', SKEL)}\n")
    found = at(skel, site)
    assert found is not None
    assert (found.kind, found.version, found.shadowed) == ("tree", None, ())
    write_metadata(site, "skel.engine", "2.0")
    found = at(skel, site)
    assert found is not None
    assert (found.kind, found.version) == ("regular", "2.0")


def test_what_pip_left_of_an_earlier_install_is_none(tmp_path: Path) -> None:
    write_metadata(tmp_path, "skel", "2.0")
    (tmp_path / "skel-2.0.dist-info").rename(tmp_path / "~kel-2.0.dist-info")
    write_metadata(tmp_path, "skel", "3.0")
    assert [found.version for _, found in distributions(environment(tmp_path))] == ["3.0"]


def test_metadata_of_distutils_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "Skel-1.5-py3.11.egg-info").write_text("Metadata-Version: 1.0\nName: Skel\nVersion: 1.5\n")
    assert [found.version for _, found in distributions(environment(tmp_path))] == ["1.5"]


def test_two_records_of_one_distribution_in_one_folder(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_metadata(tmp_path / name, "skel", "2.0")
    (tmp_path / "first" / "a.pth").write_text(f"{tmp_path / 'second'}\n")
    assert doubled(environment(tmp_path / "first")) == {}  # the one in front hides the other
    (tmp_path / "first" / "skel-1.0.dist-info").mkdir()  # what a killed uninstallation leaves
    assert doubled(environment(tmp_path / "first")) == {}
    write_metadata(tmp_path / "first", "skel", "3.0")
    assert doubled(environment(tmp_path / "first")) == {"skel": ["skel-2.0.dist-info", "skel-3.0.dist-info"]}


def test_missing_site(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="is no folder"):
        environment(tmp_path / "missing")


# ---- this interpreter's own environment ----

LOOK = (
    "import sys; from pathlib import Path; from types import SimpleNamespace as S\n"
    "from train_infer_consistency.overlay.locate import environment, find\n"
    "found = find(environment(), S(name='skel', package='skel', distribution='skel-engine'))\n"
    "print(found and found.root)\n"
    "assert 'skel' not in sys.modules\n"
)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("env") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    source = Path(__file__).resolve().parents[2] / "src"
    (site / "project.pth").write_text(f"{source}\n")
    return folder


def own(venv: Path, cwd: Path, *flags: str, **extra: str) -> str:
    """Look from an interpreter of a virtual environment, started in ``cwd``."""
    made = subprocess.run(
        [venv / "bin/python", *flags, "-c", LOOK], cwd=cwd, env=extra, capture_output=True, text=True, check=True
    )
    return made.stdout.strip()


def test_current_folder_is_never_taken(venv: Path, tmp_path: Path) -> None:
    write_tree(tmp_path, SKEL)
    assert own(venv, tmp_path) == "None"
    for entry in ("", ".", f"{os.pathsep}.{os.pathsep}"):
        assert own(venv, tmp_path, PYTHONPATH=entry) == "None"
    assert own(venv, Path("/"), PYTHONPATH=str(tmp_path)) == str(tmp_path)
    assert own(venv, Path("/"), "-E", PYTHONPATH=str(tmp_path)) == "None"


@pytest.mark.parametrize("style", ["regular", "finder", "pth", "develop"])
def test_same_as_python_imports(venv: Path, tmp_path: Path, style: str) -> None:
    """The interpreter's own import of the package is the oracle."""
    (site,) = venv.glob("lib/python3.*/site-packages")
    before = {path.name for path in site.iterdir()}
    checkout = tmp_path / "checkout"
    if style == "regular":
        install(site, "skel", SKEL)
    else:
        write_tree(checkout, SKEL)
        make_editable(site, "skel", checkout, style)
        finder = site / "__editable___skel_engine_1_0_finder.py"
        if finder.exists():  # one that works, since Python runs it
            finder.write_text(
                f"import sys\nMAPPING = {{'skel': {str(checkout / 'skel')!r}}}\n"
                "def install():\n    sys.path.append(MAPPING['skel'].rpartition('/')[0])\n"
            )
    try:
        code = "import skel, os; print(os.path.dirname(os.path.dirname(skel.__file__)))"
        oracle = subprocess.run(
            [venv / "bin/python", "-c", code], cwd="/", env={}, capture_output=True, text=True, check=True
        )
        assert own(venv, tmp_path) == oracle.stdout.strip()
    finally:
        for path in site.iterdir():
            if path.name not in before:
                subprocess.run(["rm", "-r", str(path)], check=True)
