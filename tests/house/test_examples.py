"The examples of docstrings print what they say."
import doctest
import importlib
import inspect

import pytest
from conftest import ROOT

MODULES = [path.relative_to(ROOT).with_suffix("").parts for path in sorted((ROOT/"calibnb").rglob("*.py"))]
WITH_EXAMPLES = [".".join(parts).removesuffix(".__init__") for parts in MODULES
                 if ">>> " in (ROOT.joinpath(*parts).with_suffix(".py")).read_text()]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


class Finder(doctest.DocTestFinder):
    "Finds decorated functions, too: doctest thinks that they belong to the module of the decorator."
    def _from_module(self, module, object):
        return super()._from_module(module, inspect.unwrap(object))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_print_what_they_say(name, tmp_path, monkeypatch):
    "Each example starts with nothing but its own imports, in an empty folder, as a reader types it."
    monkeypatch.chdir(tmp_path)
    module, runner = importlib.import_module(name), doctest.DocTestRunner(optionflags=OPTIONS)
    for example in Finder(exclude_empty=True).find(module, globs={}):
        if example.examples:
            runner.run(example)
    assert not runner.failures
