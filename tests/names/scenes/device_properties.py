"""Properties of devices: their identity, the uuid, and wrong arguments."""

from __future__ import annotations

from support.on_oracle import outcome


def identity(cuda, torch_like):
    first, again = cuda.get_device_properties(0), cuda.get_device_properties("cuda:0")
    return first is again, first == again, first == cuda.get_device_properties(1), isinstance(hash(first), int)


def uuids(cuda, torch_like):
    uuid = cuda.get_device_properties(0).uuid
    text = str(uuid)
    return (
        [len(part) for part in text.split("-")],
        type(uuid.bytes).__name__,
        len(uuid.bytes),
        {type(each).__name__ for each in uuid.bytes} == {"int"},
        bytes(uuid.bytes).hex() == text.replace("-", ""),
        f"{uuid}" == text,
        isinstance(uuid, str),
        outcome(cuda, setattr, uuid, "bytes", [])["error"],
        type(uuid).__name__,
    )


def text(cuda, torch_like):
    properties = cuda.get_device_properties()
    return (
        str(properties.uuid) in repr(properties),
        type(properties).__name__,
        outcome(cuda, setattr, properties, "name", "x")["error"],
        outcome(cuda, lambda: properties.nothing)["error"],
    )
