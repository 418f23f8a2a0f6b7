"""Plans of copies, as a table of facts; their execution is tested in test_transfer.py and by the scenes of copies."""

from __future__ import annotations

import itertools

import pytest

from forebay.runtime.memory.copy_plan import CopyPlan, plan_copy

HIDDEN_SOURCE = {"source_visible": False}
HIDDEN_TARGET = {"target_visible": False}
HIDDEN = HIDDEN_SOURCE | HIDDEN_TARGET
ARRAY = {"source_on_stream": False, **HIDDEN_TARGET}
VISIBLE_ARRAY = {"source_on_stream": False}
ASYNC = {"non_blocking": True}
REGISTERED = {"registered": True}
FROM_PINNED, TO_PINNED = HIDDEN_TARGET | {"pinned": "source"}, HIDDEN_SOURCE | {"pinned": "target"}
INTO_GRAPH, FROM_GRAPH = FROM_PINNED | {"captured": "target"}, TO_PINNED | {"captured": "source"}

PLANS = {
    "same kind, visible": ({"same_kind": True}, ("direct", "target", "none", "owners")),
    "same kind, hidden": ({"same_kind": True} | HIDDEN_SOURCE, ("direct", "target", "clone", "owners")),
    "to a device": (HIDDEN_TARGET, ("direct", "target", "none", "owners", True)),
    "to a device, non-blocking": (HIDDEN_TARGET | ASYNC, ("direct", "target", "none", "owners")),
    "from a device": (HIDDEN_SOURCE, ("direct", "source", "clone", "owners", True)),
    "from a device, non-blocking": (HIDDEN_SOURCE | ASYNC, ("direct", "source", "clone", "owners")),
    "between devices that both are visible": ({}, ("direct", "target", "none", "owners", True)),
    "between hidden devices": (HIDDEN, ("staged", "target", "host", "nothing", True)),
    "between hidden devices, non-blocking": (HIDDEN | ASYNC, ("staged", "target", "host", "nothing")),
    "from pinned memory": (FROM_PINNED, ("direct", "target", "none", "owners", True)),
    "to pinned memory": (TO_PINNED, ("direct", "source", "clone", "owners", True)),
    "from pinned memory, non-blocking": (FROM_PINNED | ASYNC, ("asynchronous", "target", "none", "owners")),
    "to pinned memory, non-blocking": (TO_PINNED | ASYNC, ("asynchronous", "source", "none", "owners")),
    "from registered memory": (FROM_PINNED | ASYNC | REGISTERED, ("asynchronous", "target", "none", "host")),
    "to registered memory": (TO_PINNED | ASYNC | REGISTERED, ("asynchronous", "source", "none", "host")),
    "captured, from pinned memory": (INTO_GRAPH | ASYNC, ("captured", "target", "none", "graph")),
    "captured, to pinned memory": (FROM_GRAPH | ASYNC, ("captured", "source", "none", "graph")),
    "captured, from registered memory": (INTO_GRAPH | ASYNC | REGISTERED, ("captured", "target", "none", "graph")),
    "captured, blocking": (INTO_GRAPH, ("captured", "target", "none", "graph")),
    "captured, from other memory": (INTO_GRAPH | ASYNC | {"pinned": None}, ("captured", "target", "host", "graph")),
    "captured, to other memory": (FROM_GRAPH | ASYNC | {"pinned": None}, ("captured", "source", "host", "graph")),
    "captured, pinned on the wrong side": (
        INTO_GRAPH | ASYNC | {"pinned": "target"},
        ("captured", "target", "host", "graph"),
    ),
    "captured, strided": (INTO_GRAPH | ASYNC | {"contiguous": False}, ("captured", "target", "host", "graph")),
    "captured, converting": (INTO_GRAPH | ASYNC | {"converts": True}, ("captured", "target", "none", "graph")),
    "captured, converting, blocking": (INTO_GRAPH | {"converts": True}, ("captured", "target", "host", "graph")),
    "array": (ARRAY, ("direct", "target", "none", "host", True)),
    "array, non-blocking": (ARRAY | ASYNC, ("asynchronous", "target", "host", "host")),
    "array to visible memory, non-blocking": (VISIBLE_ARRAY | ASYNC, ("direct", "target", "none", "host", True)),
    "pinned array": (ARRAY | ASYNC | FROM_PINNED, ("asynchronous", "target", "none", "owners")),
    "registered array": (ARRAY | ASYNC | FROM_PINNED | REGISTERED, ("asynchronous", "target", "none", "host")),
    "captured array": (ARRAY | {"captured": "target"}, ("captured", "target", "host", "graph")),
    "captured pinned array": (ARRAY | ASYNC | INTO_GRAPH, ("captured", "target", "none", "graph")),
}


@pytest.mark.parametrize(("facts", "plan"), PLANS.values(), ids=PLANS)
def test_plan_follows_from_the_facts(facts, plan):
    assert plan_copy(**facts) == CopyPlan(*plan)


SIDES = ["target", "source", None]
FACTS = {
    "same_kind": [False, True],
    "non_blocking": [False, True],
    "target_visible": [False, True],
    "source_visible": [False, True],
    "source_on_stream": [False, True],
    "captured": SIDES,
    "pinned": SIDES,
    "registered": [False, True],
    "contiguous": [False, True],
    "converts": [False, True],
}


def test_every_plan_can_be_executed():
    """The queue can access both memories, a graph keeps what it reads, and only a copy that waits keeps nothing."""
    made = set()
    for values in itertools.product(*FACTS.values()):
        facts = dict(zip(FACTS, values, strict=True))
        plan = plan_copy(**facts)
        made.add(plan)
        if plan.route == "direct" and not facts["same_kind"] and facts["source_on_stream"]:
            assert facts["source_visible"] if plan.queue == "target" else facts["target_visible"]
        captured = facts["captured"] is not None and not facts["same_kind"]
        assert (plan.route == "captured") == (plan.keeps == "graph") == captured
        assert (plan.route == "staged") == (plan.keeps == "nothing")
        assert not (plan.route == "asynchronous" and (plan.synchronizes or not facts["non_blocking"]))
    assert len(made) == len({plan for _, plan in PLANS.values()})
