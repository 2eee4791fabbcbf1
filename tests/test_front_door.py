"""The package's main names are imported on first use; without torch, heavy names say what to install."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import lightir

HEAVY = sorted(lightir._HEAVY)
LIGHT = sorted(lightir._LIGHT)
NEEDS_TORCH = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra train")
BLOCK_TORCH = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
sys.modules["torch"] = None
import lightir
"""


def in_a_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", [*LIGHT, *(pytest.param(name, marks=NEEDS_TORCH) for name in HEAVY)])
def test_every_name_is_that_of_its_room(name):
    module = importlib.import_module((lightir._LIGHT | lightir._HEAVY)[name])
    assert getattr(lightir, name) is getattr(module, name)
    assert not (Path(lightir.__file__).parent / name).exists()  # a room of that name would hide it


def test_type_checkers_see_the_names_that_can_be_imported():
    tree = ast.parse(Path(lightir.__file__).read_text())
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in checked.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    seen = {name.name: node.module for node in imports for name in node.names}
    assert seen == lightir._LIGHT | lightir._HEAVY
    (exported,) = [ast.literal_eval(node.value) for node in checked.body if isinstance(node, ast.Assign)]
    assert sorted(seen) == exported
    assert set(exported) - set(HEAVY) <= set(lightir.__all__) <= set(exported)


def test_the_package_imports_nothing_and_its_light_names_no_torch():
    loaded = in_a_new_process("import lightir, sys; print([name for name in sys.modules if 'lightir.' in name])")
    assert loaded == "['lightir.version']"
    code = f"import sys; from lightir import {', '.join(LIGHT)}; print('torch' in sys.modules)"
    assert in_a_new_process(code) == "False"


def test_names_are_listed_and_unknown_ones_refused():
    assert {*LIGHT, "__version__"} <= set(dir(lightir))
    with pytest.raises(AttributeError, match="no attribute 'serach'"):
        lightir.serach  # noqa: B018
    with pytest.raises(ImportError, match="Serach"):
        from lightir import Serach  # noqa: F401


def test_without_torch_a_heavy_name_says_what_to_install_and_help_leaves_it_out():
    code = f"""
for name in {HEAVY}:
    try:
        getattr(lightir, name)
    except lightir.LightirError as error:
        print(name, error)
import pydoc
print("HELP", pydoc.render_doc(lightir, renderer=pydoc.plaintext))
"""
    code += "from lightir import *\nassert build_index and encode_corpus and 'cache_vocabulary' not in globals()\n"
    errors, _, shown = in_a_new_process(BLOCK_TORCH + code).partition("HELP")
    assert [line.split()[0] for line in errors.splitlines() if "pip install 'lightir[train]'" in line] == HEAVY
    assert "build_index(" in shown
    assert "cache_vocabulary(" not in shown
