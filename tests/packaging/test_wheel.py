# SPDX-License-Identifier: Apache-2.0
"""The wheel as a user gets it: built, unpacked elsewhere, and imported from there."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = _ROOT / "tf_subjectdp"

# Modules that need a package of an extra, and the package.
_NEEDS = {
    "tf_subjectdp.datasets.tfds": "tensorflow_datasets",
    "tf_subjectdp.federated": "tensorflow_federated",
    "tf_subjectdp.plots": "matplotlib",
}


def _run(*command, cwd, **environment):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env.update(CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3", **environment)
    return subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=600
    )


def _modules_of(tree):
    modules = set()
    for file in (tree / "tf_subjectdp").rglob("*.py"):
        parts = file.relative_to(tree).with_suffix("").parts
        modules.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return modules


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tree: parallel workers and the checkout's own build/ cannot meet in it."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (_ROOT / name).exists():
            shutil.copy(_ROOT / name, copy / name)
    shutil.copytree(_PACKAGE, copy / "tf_subjectdp", ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    if importlib.util.find_spec("build") is not None:
        tool = ["build", "--wheel", "--no-isolation", "--outdir", str(out), "."]
    else:
        tool = ["pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(out), "."]
    done = _run(sys.executable, "-m", *tool, cwd=source)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A pure wheel is installed by unpacking it (but for its scripts)."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


@pytest.fixture(scope="module")
def metadata(installed):
    (folder,) = installed.glob("*.dist-info")
    return Parser().parsestr((folder / "METADATA").read_text(encoding="utf-8"))


def test_wheel_is_pure_and_named_after_the_single_version(wheel):
    scope = {}
    exec((_PACKAGE / "version.py").read_text(encoding="utf-8"), scope)
    assert wheel.name == f"tf_subjectdp-{scope['__version__']}-py3-none-any.whl"


def test_wheel_holds_every_module_of_the_source_tree_and_nothing_else(source, installed):
    packed = {
        str(file.relative_to(installed)) for file in (installed / "tf_subjectdp").rglob("*.py")
    }
    written = (source / "tf_subjectdp").rglob("*.py")
    assert packed == {str(file.relative_to(source)) for file in written}
    assert [p.name for p in installed.iterdir() if not p.name.endswith(".dist-info")] == [
        "tf_subjectdp"
    ]


def test_metadata_names_the_core_the_extras_and_the_licence(metadata):
    requirements = metadata.get_all("Requires-Dist")
    core = {re.split(r"[^\w-]", line)[0] for line in requirements if "extra ==" not in line}
    assert core == {"dp-accounting", "numpy", "scipy", "tensorflow", "tqdm"}
    assert set(metadata.get_all("Provides-Extra")) == {
        "federated",
        "datasets",
        "plots",
        "tables",
        "dev",
    }
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Apache-2.0" in (metadata["License"] or metadata["License-Expression"])


def test_wheel_brings_the_command(installed):
    (entry_points,) = installed.glob("*.dist-info/entry_points.txt")
    text = entry_points.read_text(encoding="utf-8")
    assert "[console_scripts]" in text and "subjectdp = tf_subjectdp.cli:main" in text


def test_wheel_carries_the_licence_text(installed):
    (licence,) = installed.glob("*.dist-info/**/LICENSE")
    assert "Apache License" in licence.read_text(encoding="utf-8")


_IMPORT_ALL = """
import importlib, json, pkgutil, sys
import tf_subjectdp
failures, modules = {}, ["tf_subjectdp"]
def note(name):
    failures[name] = repr(sys.exc_info()[1])
for info in pkgutil.walk_packages(tf_subjectdp.__path__, "tf_subjectdp.", onerror=note):
    modules.append(info.name)
    try:
        importlib.import_module(info.name)
    except BaseException:
        note(info.name)
with open(sys.argv[1], "w") as file:
    json.dump({"file": tf_subjectdp.__file__, "modules": modules, "failures": failures}, file)
"""


def test_every_module_imports_from_the_installed_wheel(source, installed, tmp_path):
    report = tmp_path / "report.json"
    done = _run(
        sys.executable, "-c", _IMPORT_ALL, str(report), cwd=tmp_path, PYTHONPATH=str(installed)
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(report.read_text(encoding="utf-8"))
    assert Path(result["file"]).is_relative_to(installed)
    absent = tuple(
        module for module, needed in _NEEDS.items() if importlib.util.find_spec(needed) is None
    )
    failures = {
        module: error
        for module, error in result["failures"].items()
        if not any(module == name or module.startswith(f"{name}.") for name in absent)
    }
    assert not failures
    wanted = {name for name in _modules_of(source) if not name.startswith(absent)}
    assert wanted <= set(result["modules"])


_NO_TENSORFLOW = """
import importlib, pkgutil, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "keras", "tensorflow_datasets"):
            raise ImportError(f"{name} must not be imported here")

sys.meta_path.insert(0, Refuse())
package = importlib.import_module("tf_subjectdp.accounting")
for info in pkgutil.walk_packages(package.__path__, "tf_subjectdp.accounting."):
    importlib.import_module(info.name)
import tf_subjectdp.datasets
"""


def test_no_module_of_accounting_and_no_loader_imports_tensorflow(installed, tmp_path):
    done = _run(sys.executable, "-c", _NO_TENSORFLOW, cwd=tmp_path, PYTHONPATH=str(installed))
    assert done.returncode == 0, done.stderr
