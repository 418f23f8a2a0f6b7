"""Random fills by kernels equal those of the CPU device, bit for bit."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

COMPARE = """
from forebay.backends.common.draw_encoding import draw_now
from forebay.spi import Draw
port = CudaDriver().open(0)
queue = port.queue()
memory = port.reserve(2 * MIB)

def differences(draw, nbytes, start=0, **device):
    host = np.full(nbytes, 7, np.uint8)
    draw_now(draw._replace(address=host.ctypes.data + start))
    queue.fill(memory, 7, nbytes)
    queue.draw(draw._replace(address=memory + start, **device))
    assert (host != 7).any()
    return int((read(queue, memory, np.uint8, nbytes) != host).sum())
"""
FLOATS = "float16 bfloat16 float32 float64"
ALL = "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 " + FLOATS
LAWS = {
    "uniform": (FLOATS, "numbers=(-1.0, 3.0, 4.0)"),
    "normal": (FLOATS, "numbers=(0.5, 2.0, 0.0)"),
    "exponential": (FLOATS, "numbers=(1.5, 0.0, 0.0)"),
    "cauchy": (FLOATS, "numbers=(1.0, 2.0, 0.0)"),
    "log_normal": (FLOATS, "numbers=(0.0, 0.5, 0.0)"),
    "geometric": (ALL.replace("bool ", ""), "numbers=(0.3, 0.0, 0.0)"),
    "bernoulli": (ALL, "numbers=(0.3, 0.0, 0.0)"),
    "integers": (ALL, "range=1000, base=-7"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("law", LAWS)
def test_numbers_equal_those_of_the_cpu_device(law):
    elements, parameters = LAWS[law]
    program = (
        COMPARE
        + f"""
for element in {elements.split()}:
    for count, threads in ((1, 256), (1023, 256), (5000, 512), (5000, 131072)):
        draw = Draw({law!r}, element, 0, count, (), 0x123456789ABCDEF, 4 * 0xFFFFFFFF, threads, {parameters})
        found = differences(draw, 60000)
        strided = Draw({law!r}, element, 0, 24, ((3, 48), (2, -16), (4, 200)), 5, 8, 256, {parameters})
        found += differences(strided, 1000, 33)  # unaligned, too
        if found:
            print(element, count, threads, found)
print("done")
"""
    )
    assert output_of(program) == ["done"]


def test_integers_of_64_bits_and_parameters_for_each_element():
    program = (
        COMPARE
        + """
for range, element in ((0, "int64"), (10**15, "int64"), (2**40 + 1, "float64")):
    wide = Draw("integers", element, 0, 700, (), 3, 4, 256, range=range, base=-(2**62), is_64bit=True)
    print(differences(wide, 6000))
PAIRS = [("chances", "float32"), ("chances", "bool"), ("chances", "float64")]
for law, element in [*PAIRS, ("poisson", "float16"), ("poisson", "float64")]:
    values = np.linspace(0, 1, 1001) if law == "chances" else np.geomspace(0.1, 5000, 1001)
    values = values.astype("f8" if element == "float64" else "f4")
    queue.copy(memory + MIB, values.ctypes.data, values.nbytes)
    each = Draw(law, element, 0, 1001, (), 3, 4, 256, probabilities=values.ctypes.data)
    print(differences(each, 10000, probabilities=memory + MIB))
"""
    )
    assert output_of(program) == ["0"] * 8


def test_seed_and_offset_can_be_in_device_memory():
    program = (
        COMPARE
        + """
from forebay.backends.nvidia.kernels.draws import launch_draw
source, now = np.array([77, 40], "u8"), Draw("normal", "float32", memory, 300, (), 77, 48, 256, (0.0, 1.0, 0.0))
queue.draw(now)
expected = read(queue, memory, "f4", 300)
queue.copy(memory + MIB, source.ctypes.data, 16)
launch_draw(queue, now._replace(seed=5, offset=8), memory + MIB)
print((read(queue, memory, "f4", 300) == expected).all())
"""
    )
    assert output_of(program) == ["True"]


@pytest.mark.parametrize(("law", "value"), [("chances", 1.5), ("chances", -0.1), ("poisson", -1.0)])
def test_parameter_out_of_range_fails_asynchronously(law, value):
    program = (
        COMPARE
        + f"""
values = np.full(8, 0.5, "f4")
values[5] = {value}
queue.copy(memory + MIB, values.ctypes.data, values.nbytes)
queue.draw(Draw({law!r}, "float32", memory, 8, (), 3, 4, 256, probabilities=memory + MIB))
try:
    queue.wait(queue.signal())
except DeviceError as error:
    print(error.code, str(error).splitlines()[0])
port.close()
"""
    )
    assert output_of(program) == ["710 CUDA error: device-side assert triggered"]


def test_invalid_draws_are_refused():
    program = (
        COMPARE
        + """
valid = Draw("uniform", "float32", memory, 8, (), 3, 4, 256, (0.0, 1.0, 1.0))
calls = soft.softcuda_calls(b"cuLaunchKernel")
for change in ({"threads": 255}, {"offset": 3}, {"distribution": "integers"}, {"axes": ((1, 4),) * 65}):
    try:
        queue.draw(valid._replace(**change))
    except ValueError as error:
        print(str(error)[:20])
queue.draw(valid._replace(elements=0))
print(soft.softcuda_calls(b"cuLaunchKernel") - calls)
queue.close()
try:
    queue.draw(valid)
except WrongState:
    print("closed")
"""
    )
    assert output_of(program) == ["invalid draw: Draw(d"] * 4 + ["0", "closed"]
