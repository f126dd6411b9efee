"""Errors: one tree, each survives pickling with all it says."""

import copy
import pickle

import pytest

from grpo_bench.contract import Boundary, GrpoBenchError, PluginError, WorkerLost, errors

KINDS = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, GrpoBenchError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("through", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy])
def test_every_error_survives(kind, through):
    error = kind("it broke", hint="mend it", boundary=Boundary("torch", "trainer", "t1", 3))
    error.add_note("a note")
    found = through(error)
    assert type(found) is kind
    assert (found.message, found.hint, found.boundary) == (error.message, error.hint, error.boundary)
    assert found.__notes__ == ["a note"]
    assert str(found) == "it broke [plugin torch, role trainer, task t1, step 3] (mend it)"


def test_the_remote_traceback_survives():
    error = WorkerLost("gone")
    error.remote_traceback = "Traceback ..."
    assert pickle.loads(pickle.dumps(error)).remote_traceback == "Traceback ..."
    assert PluginError("x").remote_traceback == ""


def test_an_error_without_coordinates_says_its_message_only():
    assert str(GrpoBenchError("it broke")) == "it broke"


def test_the_tree_in_the_docstring_is_the_tree():
    lines = [line for line in (errors.__doc__ or "").splitlines() if line.strip(" │├└─").split(" ")[0].isidentifier()]
    drawn = {}
    path: list[str] = []
    for line in lines:
        name = line.strip(" │├└─").split(" ")[0]
        if not isinstance(getattr(errors, name, None), type):
            continue
        depth = line.index(name) // 4 - 1
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: kind.__mro__[1].__name__ for kind in KINDS}
