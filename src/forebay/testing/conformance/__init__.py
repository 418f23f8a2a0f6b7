"""The conformance suite for backends: the contract of `forebay.spi`, and the runtime on top of the backend.

A vendor's test file consists of two lines:

    from forebay.testing.conformance import *
    pytest_plugins = ["forebay.testing.plugin"]

A test that needs an ability is skipped if neither the port nor its queues have the ability, whatever the device kind.
`forebay.testing.conformance.helpers` holds helpers that are useful in vendors' own tests.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in [
            "captures",
            "driver",
            "external_queues",
            "growable",
            "identifies_memory",
            "launches",
            "memory",
            "pinned",
            "queues",
            "resizable",
            "runtime_graphs",
            "runtime_memory",
            "runtime_events",
            "runtime_lifecycle",
            "runtime_random",
            "runtime_streams",
            "helpers",
            "shares",
            "storage_modes",
            "strided_copies",
            "survives_fork",
            "timing",
        ]
    )
)

from forebay.testing.conformance import (  # noqa: E402 - assertions of imported modules cannot be rewritten
    captures,
    driver,
    external_queues,
    growable,
    identifies_memory,
    launches,
    memory,
    pinned,
    queues,
    resizable,
    runtime_events,
    runtime_graphs,
    runtime_lifecycle,
    runtime_memory,
    runtime_random,
    runtime_streams,
    shares,
    storage_modes,
    strided_copies,
    survives_fork,
    timing,
)
from forebay.testing.conformance.captures import *  # noqa: E402, F403 - the `__all__` of each module is its part of the suite
from forebay.testing.conformance.driver import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.external_queues import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.growable import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.identifies_memory import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.launches import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.memory import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.pinned import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.queues import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.resizable import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_events import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_graphs import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_lifecycle import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_memory import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_random import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.runtime_streams import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.shares import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.storage_modes import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.strided_copies import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.survives_fork import *  # noqa: E402, F403 - as above
from forebay.testing.conformance.timing import *  # noqa: E402, F403 - as above

__all__: list[str] = []
__all__ += captures.__all__
__all__ += driver.__all__
__all__ += external_queues.__all__
__all__ += growable.__all__
__all__ += identifies_memory.__all__
__all__ += launches.__all__
__all__ += memory.__all__
__all__ += pinned.__all__
__all__ += queues.__all__
__all__ += resizable.__all__
__all__ += runtime_graphs.__all__
__all__ += runtime_memory.__all__
__all__ += runtime_events.__all__
__all__ += runtime_lifecycle.__all__
__all__ += runtime_random.__all__
__all__ += runtime_streams.__all__
__all__ += shares.__all__
__all__ += storage_modes.__all__
__all__ += strided_copies.__all__
__all__ += survives_fork.__all__
__all__ += timing.__all__
